"""Steps: the committed steps of a run as columns, and the times of its workers.

Numbers of every step are kept, 120 bytes each. The times of each worker are kept of every step of a
short run, and of every n-th of a long one: then they count for the steps up to the next.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Final, NamedTuple

from holdfast.core.goodput import LOSSES, CommittedSteps, Losses, losses_of_step

MAX_WORKER_ROWS: Final = 1 << 14
"""Of how many steps the times of each worker are kept at most."""

Workers = Mapping[str, list[float]]
"""What each member has measured in a step: a list per column, `rank` and `shards` among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A column thinned out for a chart: the least, the greatest and the mean value of each piece.

    Attributes:
        step, at: Of the last step of each piece.
        low, high, mean: Of its values; nan if it has none.
    """

    step: list[int]
    at: list[float]
    low: list[float]
    high: list[float]
    mean: list[float]


class Step(NamedTuple):
    """A committed step, as its line in `metrics.jsonl` has it; nan is for what it has not."""

    step: int
    at: float
    seconds: float
    epoch: int
    samples: int
    loss: float
    lr: float
    norm: float


class Steps:
    """The steps of a run, which only grow, or are cut off where a restart begins.

    Args:
        verified: The share of shards that are computed twice.

    Attributes:
        columns: An array a column, with the names of `Step`; `at` never falls.
        losses, pauses: See `core.goodput`.
        logged: Further columns: what the task logs.
        workers: The times of workers, with the row of their step.
    """

    def __init__(self, verified: float = 0.0) -> None:
        self._verified = verified
        self.columns: dict[str, array[Any]] = {
            name: array("q" if name in _COUNTS else "d") for name in Step._fields
        }
        self.losses = {cause: array("d") for cause in LOSSES}
        self.pauses: dict[int, Losses] = {}
        self.logged: dict[str, array[float]] = {}
        self.workers: list[tuple[int, Workers]] = []
        self._stride, self._batch = 1, 0
        self._shares = Losses()  # of the newest step whose workers are known

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def newest(self) -> int:
        """The number of the newest step; 0 if there is none."""
        return int(self.columns["step"][-1]) if len(self) else 0

    def wants_workers(self) -> bool:
        """Whether the times of workers of the next step are to be kept."""
        return len(self) % self._stride == 0

    def add(
        self, step: Step, logged: Mapping[str, float | None], pauses: Losses, workers: Workers
    ) -> None:
        """Add a step.

        Args:
            step: Its numbers. Without a time, it counts as committed with the one before.
            logged: What the task has logged in it.
            pauses: What its writer has lost in checkpoints and evaluations.
            workers: What its members have measured; empty where that is not needed.
        """
        row, at = len(self), self.columns["at"]
        last = at[-1] if row else -inf
        now = max(last, step.at)
        gap = now - last
        losses, self._batch = pauses, max(self._batch, step.samples)
        if any(pauses):
            self.pauses[row] = pauses
        if workers:
            is_whole = step.samples >= self._batch
            found = losses_of_step(workers, self._verified, gap, is_whole=is_whole).within(gap)
            self._shares = _shares(found, gap)
            checkpoint = max(found.checkpoint, pauses.checkpoint)
            losses = found._replace(
                checkpoint=checkpoint, evaluation=max(found.evaluation, pauses.evaluation)
            )
            self._keep(row, workers)
        elif gap < inf:
            held = (share * gap for share in self._shares[2:])
            losses = Losses(pauses.checkpoint, pauses.evaluation, *held)
        for name, value in zip(Step._fields, step, strict=True):
            self.columns[name].append(value)
        at[-1] = now
        for cause, lost in zip(LOSSES, losses.within(gap), strict=True):
            self.losses[cause].append(lost)
        if logged or self.logged:
            self._log(row, logged)

    def _keep(self, row: int, workers: Workers) -> None:
        if row % self._stride:
            return  # only its losses are of use
        self.workers.append((row, workers))
        if len(self.workers) > MAX_WORKER_ROWS:
            self._stride *= 2
            self.workers = [each for each in self.workers if each[0] % self._stride == 0]

    def _log(self, row: int, logged: Mapping[str, float | None]) -> None:
        for name in logged:
            if name not in self.logged:
                self.logged[name] = array("d", [nan]) * row
        for name, column in self.logged.items():
            value = logged.get(name)
            column.append(nan if value is None else value)

    def cut(self, rows: int) -> None:
        """Drop all steps but the first `rows`."""
        for columns in (self.columns, self.losses, self.logged):
            for column in columns.values():
                del column[rows:]
        self.pauses = {row: each for row, each in self.pauses.items() if row < rows}
        kept = bisect_left(self.workers, rows, key=lambda each: each[0])
        del self.workers[kept:]

    def committed(self, evaluated: int) -> CommittedSteps:
        """The steps as `core.goodput` takes them; they are read, not copied.

        Args:
            evaluated: The newest step with an evaluation.
        """
        columns = self.columns
        return CommittedSteps(
            step=columns["step"],
            at=columns["at"],
            losses=self.losses,
            pauses=self.pauses,
            evaluated=evaluated,
        )

    def values(self, name: str) -> Sequence[float]:
        """A column by name, of the steps or of what is logged; empty if there is none."""
        return self.columns[name] if name in self.columns else self.logged.get(name, ())

    def series(self, name: str, points: int, first: int = 0) -> Series:
        """A column from row `first` on, thinned out to `points` pieces at most."""
        import numpy as np  # only charts pay for the import

        column, end = self.values(name), len(self)
        if first >= end or not column:
            return Series(step=[], at=[], low=[], high=[], mean=[])
        values = np.array(column[first:end], dtype=float)
        edges = np.unique(np.linspace(0, end - first, min(points, end - first) + 1).astype(int))
        starts, stops = edges[:-1], edges[1:]
        counts = np.add.reduceat((~np.isnan(values)).astype(float), starts)
        sums = np.add.reduceat(np.nan_to_num(values), starts)
        return Series(
            step=[self.columns["step"][first + stop - 1] for stop in stops],
            at=[self.columns["at"][first + stop - 1] for stop in stops],
            low=np.fmin.reduceat(values, starts).tolist(),
            high=np.fmax.reduceat(values, starts).tolist(),
            mean=np.divide(sums, counts, out=np.full(len(sums), nan), where=counts > 0).tolist(),
        )


_COUNTS: Final = frozenset({"step", "epoch", "samples"})
"""The columns of whole numbers."""


def _shares(losses: Losses, gap: float) -> Losses:
    """What parts of `gap` seconds were lost."""
    return Losses(*(each / gap for each in losses)) if 0 < gap < inf else Losses()
