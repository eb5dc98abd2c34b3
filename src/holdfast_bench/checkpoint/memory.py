"""Memory: what snapshots cost that `checkpoint.memory: always` keeps, next to runs without any.

Both runs of a round follow each other, and their order is reversed in every second one. Nothing is
written to the disk. How often a snapshot is taken is decided by the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast_bench.checkpoint.runs import WindowRunner
from holdfast_bench.checkpoint.window import NEVER, SaveSchedule
from holdfast_bench.results.figures import spread
from holdfast_bench.rounds import in_rounds

STEPS: Final = 60
"""Measured steps of a run: enough for several snapshots."""


@dataclass(frozen=True, slots=True)
class _SnapshotCost:
    """One run: seconds per step, and what each of its snapshots took, seconds."""

    step_s: float
    stalls_s: tuple[float, ...]


def row(runner: WindowRunner, rounds: int) -> dict[str, Any]:
    """The cost of snapshots of one workload.

    Raises:
        HoldfastError: A run failed, or took no snapshot.
    """
    ways = {kept: partial(_measured, runner, kept) for kept in ("never", "always")}
    about = f"{runner.workload}, {runner.workers} workers, snapshots"
    runs = in_rounds(ways, rounds, about, alternates=True)
    pairs = zip(runs["always"], runs["never"], strict=True)
    stalls_ms = [1e3 * stall for each in runs["always"] for stall in each.stalls_s]
    if not stalls_ms:
        raise HoldfastError(f"{runner.workload} took no snapshot in {rounds} runs of {STEPS} steps")
    return {
        "measure": "memory",
        "workload": runner.workload,
        "workers": runner.workers,
        "overhead_pct": spread([100 * (own.step_s / plain.step_s - 1) for own, plain in pairs]),
        "stall_ms": spread(stalls_ms),
        "every_steps": round(STEPS * rounds / len(stalls_ms), 1),
    }


def _measured(runner: WindowRunner, memory: str) -> _SnapshotCost:
    schedule = SaveSchedule(every=NEVER, least_steps=STEPS)
    rows = runner.rows_of({"every_steps": NEVER, "memory": memory}, schedule)
    at = {row["step"]: row["time_unix_s"] for row in rows}
    inside = [row for row in rows if schedule.first < row["step"] <= schedule.last]
    stalls = [row["phases"].get("checkpoint", 0.0) for row in inside]
    return _SnapshotCost(
        step_s=(at[schedule.last] - at[schedule.first]) / STEPS,
        stalls_s=tuple(stall for stall in stalls if stall > 0),
    )
