"""Tally: what an evaluation adds up over the batches of a range of samples, and over all ranges.

    batches of a range ── add ──▶ tally ── state ──▶ tensors ─┐
    batches of another ── add ──▶ tally ── state ──▶ tensors ─┴── results ──▶ values by name

The ranges of a data set are the same for any number of workers, and their states are combined in
their order. So the results are the same, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self

import numpy as np
import torch

from holdfast.errors import JobError

State = dict[str, torch.Tensor]
"""State of a tally after a range, by name."""
Results = dict[str, Any]
"""Numbers by name, or lists of them."""

_SAMPLES: Final = ""
"""The name of the number of samples, which no mean can have."""
_UPDATES: Final = "_update_count"
"""Attribute in which a metric of torchmetrics counts updates; without one it computes nothing."""


Metrics = Mapping[str, Callable[..., Any]]
"""By name: metrics of torchmetrics, and functions of all that was measured."""


class Tally(Protocol):
    """Sums over a range of samples."""

    def fresh(self) -> Self:
        """A tally of no samples."""

    def add(self, measured: Any, size: int) -> None:
        """Take in what was measured for a batch of `size` samples."""

    def state(self) -> State:
        """State after the samples so far."""

    def results(self, ranges: Sequence[State]) -> Results:
        """The results over all samples, from the states of ranges in their order."""


class Means:
    """Means over samples, from means over batches by name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def fresh(self) -> Self:
        return type(self)()

    def add(self, measured: Any, size: int) -> None:
        if not isinstance(measured, Mapping) or not measured or _SAMPLES in measured:
            raise JobError(
                f"an evaluation measures means by name, as a dictionary; it gave {measured!r:.200}"
            )
        sums = self._sums or dict.fromkeys([_SAMPLES, *sorted(measured)], 0.0)
        if sums.keys() - {_SAMPLES} != measured.keys():
            raise _other_names(sums, measured)
        for name, value in measured.items():
            sums[name] += size * _mean(name, value)
        sums[_SAMPLES] += size
        self._sums = sums

    def state(self) -> State:
        return {
            name: torch.tensor(total, dtype=torch.float64) for name, total in self._sums.items()
        }

    def results(self, ranges: Sequence[State]) -> Results:
        total = dict.fromkeys(ranges[0], 0.0)
        # In the order of ranges, so that float sums have the same bits for any number of workers.
        for each in ranges:
            if each.keys() != total.keys():
                raise _other_names(total, each)
            for name, value in each.items():
                total[name] += float(value)
        samples = total.pop(_SAMPLES)
        return {name: total[name] / samples for name in sorted(total)}


class MetricTally:
    """Metrics that are not means.

    Args:
        metrics: Metrics to compute; they are copied.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._parts = {name: _part(name, metric) for name, metric in metrics.items()}
        if not self._parts:
            raise JobError("the evaluation has no metrics; name at least one")

    def fresh(self) -> Self:
        new = object.__new__(type(self))
        new._parts = {name: part.fresh() for name, part in self._parts.items()}
        return new

    def add(self, measured: Any, size: int) -> None:  # noqa: ARG002  # each metric counts itself
        if isinstance(measured, Mapping):
            raise JobError(
                "an evaluation with metrics measures a tensor or a tuple, such as predictions and "
                f"targets, for the metrics; it gave a dictionary with {sorted(measured)}"
            )
        outputs = measured if isinstance(measured, tuple | list) else (measured,)
        with torch.autocast("cpu", enabled=False):
            kept = [
                each.detach().cpu() if isinstance(each, torch.Tensor) else each for each in outputs
            ]
            for part in self._parts.values():
                part.update(*kept)

    def state(self) -> State:
        return {
            f"{index}:{key}": value
            for index, part in enumerate(self._parts.values())
            for key, value in part.state().items()
        }

    def results(self, ranges: Sequence[State]) -> Results:
        found: Results = {}
        for index, (name, part) in enumerate(self._parts.items()):
            prefix = f"{index}:"
            own = [
                {k.removeprefix(prefix): v for k, v in each.items() if k.startswith(prefix)}
                for each in ranges
            ]
            with torch.autocast("cpu", enabled=False):
                value = part.result(own)
            if isinstance(value, Mapping):
                found |= {f"{name}.{key}": _plain(name, each) for key, each in value.items()}
            else:
                found[name] = _plain(name, value)
        return found


class _Outputs:
    """All that was measured, for a function."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self._batches: list[tuple[torch.Tensor, ...]] = []

    def fresh(self) -> Self:
        return type(self)(self._name, self._function)

    def update(self, *outputs: Any) -> None:
        odd = [type(each).__name__ for each in outputs if not _has_rows(each)]
        if odd:
            raise JobError(
                f"the metric {self._name} is a function of tensors with one row per sample; the "
                f"evaluation measured a {odd[0]}"
            )
        self._batches.append(outputs)

    def state(self) -> State:
        columns = zip(*self._batches, strict=True)
        return {str(at): torch.cat(column) for at, column in enumerate(columns)}

    def result(self, ranges: Sequence[State]) -> Any:
        columns = (torch.cat([each[str(at)] for each in ranges]) for at in range(len(ranges[0])))
        return self._function(*columns)


class _Torchmetric:
    """A metric of torchmetrics; also one that consists of others."""

    def __init__(self, name: str, metric: Any) -> None:
        self._name = name
        self._metric = metric.clone().cpu()
        self._metric.reset()
        for each in self._stateful().values():
            each.distributed_available_fn = lambda: False  # the ranges are all there is

    def fresh(self) -> Self:
        return type(self)(self._name, self._metric)

    def update(self, *outputs: Any) -> None:
        self._metric.update(*outputs)

    def state(self) -> State:
        found: dict[str, Any] = {}
        for name, each in self._stateful().items():
            found[f"{name}/{_UPDATES}"] = torch.tensor(each.update_count)
            for key, value in each.metric_state.items():
                if isinstance(value, torch.Tensor):
                    found[f"{name}/{key}"] = value
                else:
                    found |= {f"{name}/{key}/{at}": part for at, part in enumerate(value)}
        odd = [type(value).__name__ for value in found.values() if not torch.is_tensor(value)]
        if odd:
            raise JobError(
                f"the metric {self._name} keeps a {odd[0]}, which other workers cannot get; use a "
                "metric whose state is tensors"
            )
        return found

    def result(self, ranges: Sequence[State]) -> Any:
        merged = self.fresh()
        for name, each in merged._stateful().items():
            # As torchmetrics merges states of processes: lists are joined, tensors reduced.
            for key, initial in each.metric_state.items():
                place = f"{name}/{key}"
                if isinstance(initial, list):
                    setattr(each, key, [part for one in ranges for part in _listed(one, place)])
                else:
                    reduction = each._reductions[key]
                    values = torch.stack([one[place] for one in ranges])
                    setattr(each, key, reduction(values) if reduction else values)
            setattr(each, _UPDATES, sum(int(one[f"{name}/{_UPDATES}"]) for one in ranges))
        return merged._metric.compute()

    def _stateful(self) -> dict[str, Any]:
        return {
            n: each for n, each in self._metric.named_modules() if hasattr(each, "metric_state")
        }


def tally_of(metrics: Metrics | None) -> Tally:
    """A tally of means, or of `metrics`.

    Raises:
        JobError: One of `metrics` is none.
    """
    return Means() if metrics is None else MetricTally(metrics)


def together(evaluations: Sequence[Results]) -> Results:
    """The results of several evaluations.

    Raises:
        JobError: Two of them have the same name.
    """
    merged: Results = {}
    for results in evaluations:
        if same := sorted(merged.keys() & results.keys()):
            raise JobError(
                f"two evaluations measure {same[0]}; give the values of each its own names"
            )
        merged |= results
    return merged


def _part(name: str, metric: Any) -> _Torchmetric | _Outputs:
    if hasattr(metric, "metric_state"):
        return _Torchmetric(name, metric)
    if callable(metric) and not hasattr(metric, "compute"):
        return _Outputs(name, metric)
    raise JobError(
        f"the metric {name} is a {type(metric).__name__}; give a metric of torchmetrics, or a "
        "function of what the evaluation measured for all samples"
    )


def _listed(state: State, place: str) -> Iterator[torch.Tensor]:
    """The list that a state holds at `place`."""
    at = 0
    while (part := state.get(f"{place}/{at}")) is not None:
        yield part
        at += 1


def _plain(name: str, value: Any) -> Any:
    """`value` as numbers and lists.

    Raises:
        JobError: It is something else.
    """
    match value:
        case torch.Tensor() | np.ndarray() | np.generic():
            return value.tolist()
        case bool() | int() | float():
            return value
        case list() | tuple():
            return [_plain(name, each) for each in value]
    raise JobError(
        f"the metric {name} gave a {type(value).__name__}; it must give a number, a tensor, or "
        "lists or a dictionary of these"
    )


def _mean(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise JobError(
            f"the evaluation measured {name} as a tensor of shape {tuple(value.shape)}; a mean is "
            "a number: give `metrics` for what is not a mean"
        )
    return float(value)


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _other_names(names: Mapping[str, Any], others: Mapping[str, Any]) -> JobError:
    before, now = (sorted(each.keys() - {_SAMPLES}) for each in (names, others))
    return JobError(
        f"an evaluation must measure the same values for every batch; it gave {before} and then "
        f"{now}"
    )
