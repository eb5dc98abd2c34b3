"""Saving: what saves cost training, for each system and period.

Each round runs every system once, in the order of the round before backwards, and every system
measures its periods between two windows without saves, also backwards in every second round. So
whatever changes slowly hits all alike. A step is compared with those without saves of the same
system and round.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError
from holdfast_bench.checkpoint.cpu_meter import CpuMeter
from holdfast_bench.checkpoint.runs import WindowRunner
from holdfast_bench.checkpoint.systems import OURS, UNSYNCED
from holdfast_bench.checkpoint.window import NEVER, Figures, SaveSchedule, figures
from holdfast_bench.results.figures import spread

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingPlan:
    """Systems, periods and rounds to measure.

    Attributes:
        systems: Names of the systems.
        periods: Steps from one save to the next.
        least_steps: See `SaveSchedule`.
        rounds: How often each is measured.
    """

    systems: Sequence[str]
    periods: Sequence[int]
    least_steps: int
    rounds: int


def rows(runner: WindowRunner, plan: SavingPlan) -> list[Row]:
    """One row per system and period."""
    found: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    failures = defaultdict[str, int](int)
    for number in range(plan.rounds):
        is_forward = number % 2 == 0
        for system in plan.systems if is_forward else plan.systems[::-1]:
            where = f"{runner.workload}, {runner.workers} workers"
            print(f"{where}, round {number + 1}: {system}", file=sys.stderr)
            periods = plan.periods if is_forward else plan.periods[::-1]
            try:
                measured = _round(runner, system, periods, plan.least_steps)
            except HoldfastError as error:
                print(f"{system} failed: {error}", file=sys.stderr)
                failures[system] += 1
            else:
                for every, each in measured.items():
                    found[system, every].append(each)
    return [
        {
            "measure": "saving",
            "workload": runner.workload,
            "workers": runner.workers,
            "system": system,
            "every": every,
            **_figures_of(system, found[system, every]),
            "result": _result(system, found[system, every], failures[system]),
        }
        for system in plan.systems
        for every in plan.periods
    ]


def _round(
    runner: WindowRunner, system: str, periods: Sequence[int], least_steps: int
) -> Mapping[int, Figures]:
    """The figures of a system by period.

    Raises:
        HoldfastError: It failed.
    """
    order = [NEVER, *periods, NEVER]
    with CpuMeter() as cpu_s:
        windows = runner.windows(
            system, [SaveSchedule(every=every, least_steps=least_steps) for every in order]
        )
    for window in windows[1:-1]:
        if not window.made:
            raise HoldfastError(f"none of its saves every {window.schedule.every} steps was made")
    without = [windows[0], windows[-1]]
    return {window.schedule.every: figures(window, without, cpu_s) for window in windows[1:-1]}


def _figures_of(system: str, found: Sequence[Figures]) -> Row:
    if not found:
        return {}
    row: Row = {
        "overhead_pct": spread([100 * each.overhead for each in found]),
        "cost_ms": round(1e3 * statistics.median(each.cost_s for each in found)),
        "stall_ms": spread([1e3 * each.stall_s for each in found]),
        "cpu_ms": round(1e3 * statistics.median(each.cpu_s for each in found)),
        "saves": sum(each.made for each in found),
        "due": sum(each.due for each in found),
    }
    if system not in UNSYNCED:
        row["age_s"] = round(statistics.median(each.age_s for each in found), 2)
    return row


def _result(system: str, found: Sequence[Figures], num_failed: int) -> str:
    """The result of all rounds: fewer saves than due are a failure, unless the system says when it
    defers them.
    """
    if num_failed:
        return f"failed {num_failed}x"
    if all(each.made >= each.due for each in found):
        return "ok"
    return "deferred" if OURS.get(system) == "defer" else "too few"
