"""Steps: the committed steps of a run as columns, and the times of its workers.

Numbers of every step are kept, 120 bytes each. The times of each worker are kept of every step of a
short run, and of every n-th of a long one: then they count for the steps up to the next.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, nan
from operator import sub
from typing import TYPE_CHECKING, Any, Final

from holdfast.record.goodput import LOSSES, CommittedSteps, Losses, losses_of_step

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_WORKER_ROWS: Final = 1 << 12
"""Most steps whose times of each worker are kept."""
MAX_WORKER_TIMES: Final = 1 << 18
"""Most times that are kept, steps by workers: fewer steps if there are more than 64 workers."""

Workers = Mapping[str, list[float]]
"""Times of each member in a step: a list per column, `rank` and `shards` among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A column thinned out for a chart: the least, the greatest and the mean value of each piece.

    Attributes:
        step, at: Number and time of the last step of each piece.
        low, high, mean: Extremes and mean of its values; nan if it has none.
    """

    step: list[int]
    at: list[float]
    low: list[float]
    high: list[float]
    mean: list[float]


COLUMNS: Final = ("step", "at", "seconds", "epoch", "samples", "loss", "lr", "norm")
"""The numbers of a step: its own, when it was committed, how long it took, and so on."""
_COUNTS: Final = frozenset({"step", "epoch", "samples"})
"""Columns of whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSteps:
    """Committed steps, as their lines in `metrics.jsonl` have them.

    Attributes:
        columns: A list for each of `COLUMNS`, nan for what a step has not; `step` rises.
        logged: Values that the task has logged in each.
        pauses: By position, as far as there were any: what its writer has lost in checkpoints and
            evaluations.
        workers: Reads what the members have measured in the step at a position; empty if nothing.
    """

    columns: Mapping[str, list[Any]]
    logged: Sequence[Mapping[str, float | None]]
    pauses: Mapping[int, Losses]
    workers: Callable[[int], Workers]


class Steps:
    """The steps of a run, which only grow, or are cut off where a restart begins.

    Args:
        verified: The share of shards that are computed twice.

    Attributes:
        columns: An array a column, with the names in `COLUMNS`; `at` never falls.
        losses, pauses: Lost times; see `record.goodput`.
        logged: Further columns: what the task logs.
        workers: The times of workers, with the row of their step.
    """

    def __init__(self, verified: float = 0.0) -> None:
        self._verified = verified
        self.columns: dict[str, array[Any]] = {
            name: array("q" if name in _COUNTS else "d") for name in COLUMNS
        }
        self.losses = {cause: array("d") for cause in LOSSES}
        self.pauses: dict[int, Losses] = {}
        self.logged: dict[str, array[float]] = {}
        self.workers: list[tuple[int, Workers]] = []
        self._arrays: dict[str, npt.NDArray[np.float64]] = {}
        self._stride = 1
        self._batch = 0
        self._shares = Losses()  # of the newest step whose workers are known

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def newest(self) -> int:
        """The number of the newest step; 0 if there is none."""
        return int(self.columns["step"][-1]) if len(self) else 0

    def extend(self, new: NewSteps) -> None:
        """Add steps. One without a time counts as committed with the one before."""
        first = len(self)
        times = new.columns["at"]
        last = self.columns["at"][-1] if first else times[0]
        at = list(accumulate(times, max, initial=last))  # max skips nan
        gaps = list(map(sub, at[1:], at))
        if not first:
            gaps[0] = inf
        for name, column in self.columns.items():
            values = at[1:] if name == "at" else new.columns[name]
            column.extend(array(column.typecode, values))  # faster than a list
        self._log(first, new.logged)
        self._batch = max(self._batch, *new.columns["samples"])
        paused = sorted(new.pauses)
        place = 0
        while place < len(gaps):
            if place in new.pauses or self._is_kept(first + place):
                self._measure(first, place, gaps[place], new)
                place += 1
            following = paused[bisect_left(paused, place) :]
            kept = place + -(first + place) % self._stride
            stop = min(kept, len(gaps), *following[:1])
            self._hold(gaps[place:stop])
            place = stop

    def _is_kept(self, row: int) -> bool:
        return row % self._stride == 0

    def _measure(self, first: int, place: int, gap: float, new: NewSteps) -> None:
        """Add what a step has lost by the times of its workers, and keep these."""
        workers = new.workers(place)
        pauses = new.pauses.get(place, Losses())
        row = first + place
        losses = pauses
        if place in new.pauses:
            self.pauses[row] = pauses
        if workers:
            is_whole = new.columns["samples"][place] >= self._batch
            found = losses_of_step(workers, self._verified, gap, is_whole=is_whole)
            losses = found._replace(
                checkpoint=max(found.checkpoint, pauses.checkpoint),
                evaluation=max(found.evaluation, pauses.evaluation),
            )
        losses = losses.within(gap)
        for cause, lost in zip(LOSSES, losses, strict=True):
            self.losses[cause].append(lost)
        if workers and self._is_kept(row):
            self._shares = _shares(losses, gap)
            self.workers.append((row, workers))
            if len(self.workers) > min(MAX_WORKER_ROWS, MAX_WORKER_TIMES // len(workers["rank"])):
                self._stride *= 2
                self.workers = [each for each in self.workers if self._is_kept(each[0])]

    def _hold(self, gaps: Sequence[float]) -> None:
        """Add what steps have lost by the shares of the newest whose workers are known; they had
        no checkpoint and no evaluation.
        """
        shares = self._shares._replace(checkpoint=0, evaluation=0)
        for cause, share in zip(LOSSES, shares, strict=True):
            lost = [share * gap for gap in gaps] if share else bytes(8 * len(gaps))
            self.losses[cause].extend(array("d", lost))

    def _log(self, first: int, logged: Sequence[Mapping[str, float | None]]) -> None:
        for name in {name: None for values in logged for name in values}:
            if name not in self.logged:
                self.logged[name] = array("d", [nan]) * first
        for name, column in self.logged.items():
            found = (values.get(name) for values in logged)
            column.extend(array("d", [nan if value is None else value for value in found]))

    def cut(self, rows: int) -> None:
        """Drop all steps but the first `rows`."""
        self._arrays.clear()
        for columns in (self.columns, self.losses, self.logged):
            for column in columns.values():
                del column[rows:]
        self.pauses = {row: each for row, each in self.pauses.items() if row < rows}
        kept = bisect_left(self.workers, rows, key=lambda each: each[0])
        del self.workers[kept:]

    def committed(self, evaluated: int) -> CommittedSteps:
        """The steps as `record.goodput` takes them; they are read, not copied.

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

    def array(self, name: str) -> npt.NDArray[np.float64]:
        """A column by name, as it is now; to be read only."""
        import numpy as np  # only charts pay for the import

        found = self._arrays.get(name)
        if found is None or len(found) != len(self):
            found = self._arrays[name] = np.array(self.values(name), dtype=float)
        return found

    def series(self, name: str, points: int, first: int = 0, stop: int | None = None) -> Series:
        """A column from row `first` up to `stop`, thinned out to `points` pieces at most."""
        import numpy as np  # as above

        end = len(self) if stop is None else min(stop, len(self))
        if first >= end or not self.values(name):
            return Series(step=[], at=[], low=[], high=[], mean=[])
        values = self.array(name)[first:end]
        edges = np.unique(np.linspace(0, end - first, min(points, end - first) + 1).astype(int))
        starts = edges[:-1]
        stops = edges[1:]
        counts = np.add.reduceat((~np.isnan(values)).astype(float), starts)
        sums = np.add.reduceat(np.nan_to_num(values), starts)
        return Series(
            step=[self.columns["step"][first + stop - 1] for stop in stops],
            at=[self.columns["at"][first + stop - 1] for stop in stops],
            low=np.fmin.reduceat(values, starts).tolist(),
            high=np.fmax.reduceat(values, starts).tolist(),
            mean=np.divide(sums, counts, out=np.full(len(sums), nan), where=counts > 0).tolist(),
        )


def _shares(losses: Losses, gap: float) -> Losses:
    """Parts of `gap` seconds that were lost."""
    return Losses(*(each / gap for each in losses)) if 0 < gap < inf else Losses()
