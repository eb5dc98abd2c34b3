"""Figure: loss, throughput and shards of a run over its time, and of several by their samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib
from matplotlib.figure import Figure

from holdfast.errors import JobError
from holdfast.record.run_record import RunRecord
from holdfast.record.steps import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Places = Callable[[Series], list[float]]
"""Gives the horizontal places of the pieces of a curve."""

MAX_POINTS: Final = 1500
"""Points of a curve: more than pixels."""
MAX_MARKS: Final = 20
"""Failures that get a number; further ones get a line only."""
_INK, _GRID, _FAILURE = "#586B67", "#E7EDEA", "#B3342B"
_OURS: Final = "#4E6A17"
_WORKERS: Final = ("#15538F", "#4A97D8", "#6F5208", "#B39025")
"""Colors of the first two workers on each of two hosts; further ones repeat them."""
_RUNS: Final = ("#4E6A17", "#15538F", "#B39025", "#6B4E9B", "#4A97D8", "#6F5208")
"""Colors of runs that are compared; further ones repeat them."""
_STYLE: Final[Any] = {
    "font.size": 9, "axes.edgecolor": _GRID, "axes.labelcolor": _INK, "xtick.color": _INK,
    "ytick.color": _INK, "axes.grid": True, "axes.grid.axis": "y", "grid.color": _GRID,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.titlelocation": "left", "axes.titlesize": 10, "axes.axisbelow": True,
    "xtick.major.size": 0, "ytick.major.size": 0, "legend.frameon": False,
}  # fmt: skip


def figure_of(record: RunRecord) -> Figure:
    """The charts of a run; those without data are empty."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 7), dpi=120, layout="constrained")
        loss, throughput, shards = figure.subplots(3, 1, sharex=True)
        start = _start(record)

        def minutes(pieces: Series) -> list[float]:
            return [(at - start) / 60 for at in pieces.at]

        _draw_loss(loss, record, minutes)
        _draw_throughput(throughput, record, minutes)
        _draw_shards(shards, record, start)
        shards.set_xlabel("minutes")
        for axes in (loss, throughput, shards):
            _mark_failures(axes, record, start, has_numbers=axes is loss)
        figure.suptitle(record.path.name, x=0.01, ha="left", fontweight="bold")
    return figure


def write_comparison(records: Sequence[RunRecord], names: Sequence[str], path: Path) -> None:
    """Draw the losses and the throughput of runs by samples, so that other batches compare.

    Args:
        records: The runs.
        names: Name of each.
        path: The picture; its suffix says the format.

    Raises:
        JobError: The suffix names none.
        OSError: It cannot be written.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 6), dpi=120, layout="constrained")
        loss, throughput = figure.subplots(2, 1, sharex=True)
        throughput.set_xlabel("samples")
        for record, name, color in zip(records, names, cycle(_RUNS)):
            samples = _by_samples(record)
            _draw_loss(loss, record, samples, color, name)
            _draw_throughput(throughput, record, samples, color)
        loss.legend(loc="upper right", fontsize=8)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise JobError(f"{path}: {error}") from None


def _start(record: RunRecord) -> float:
    at = record.steps.columns["at"]
    return record.started_at if record.started_at is not None else (at[0] if at else 0.0)


def _by_samples(record: RunRecord) -> Places:
    """Places of pieces by the samples that a run has done."""
    columns = record.steps.columns
    totals = list(accumulate(columns["samples"], initial=0))
    return lambda pieces: [float(totals[bisect_right(columns["step"], n)]) for n in pieces.step]


def _draw_loss(
    axes: Axes, record: RunRecord, places: Places, color: str = _OURS, name: str = ""
) -> None:
    curve = record.steps.series("loss", MAX_POINTS)
    x = places(curve)
    axes.set_title("Loss")
    axes.fill_between(x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    axes.plot(x, curve.mean, color=color, linewidth=1.2, label=name)


def _draw_throughput(axes: Axes, record: RunRecord, places: Places, color: str = _OURS) -> None:
    """Draw the samples per second, recoveries and all: a recovery is a dip."""
    pieces = record.steps.series("samples", MAX_POINTS // 5)
    times = [_start(record), *pieces.at]
    steps = [0, *pieces.step]
    rates = [
        mean * (step - before) / (now - then) if now > then else 0.0
        for mean, before, step, then, now in zip(
            pieces.mean, steps, pieces.step, times, pieces.at, strict=False
        )
    ]
    axes.set_title("Samples per second")
    axes.plot(places(pieces), rates, color=color, linewidth=1.2, drawstyle="steps-pre")
    axes.set_ylim(bottom=0)


def _draw_shards(axes: Axes, record: RunRecord, start: float) -> None:
    """Draw how many shards each rank computes, one above the other."""
    axes.set_title("Shards of each rank")
    rows = record.steps.workers
    rows = rows[:: max(1, len(rows) // MAX_POINTS)]
    ranks = sorted({int(rank) for _, workers in rows for rank in workers["rank"]})
    at = record.steps.columns["at"]
    minutes = [(at[row] - start) / 60 for row, _ in rows]
    shares = {rank: [0.0] * len(rows) for rank in ranks}
    for place, (_, workers) in enumerate(rows):
        for rank, shards in zip(workers["rank"], workers["shards"], strict=True):
            shares[int(rank)][place] = shards
    if ranks:
        colors = [_WORKERS[rank % len(_WORKERS)] for rank in ranks]
        labels = [f"rank {rank}" for rank in ranks]
        axes.stackplot(minutes, *shares.values(), colors=colors, labels=labels, step="post")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)


def _mark_failures(axes: Axes, record: RunRecord, start: float, *, has_numbers: bool) -> None:
    for place, report in enumerate(record.recoveries):
        minute = (report.time_unix_s - report.total_s - start) / 60
        axes.axvline(minute, color=_FAILURE, linewidth=0.8)
        if has_numbers and place < MAX_MARKS:
            axes.annotate(
                f"{report.number}", (minute, 1), xycoords=("data", "axes fraction"), ha="center",
                va="bottom", fontsize=7, color="white",
                bbox={"boxstyle": "square,pad=0.2", "color": _FAILURE},
            )  # fmt: skip
