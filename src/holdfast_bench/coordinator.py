"""How a failure of the coordinator affects the duration of steps.

Each run trains with two workers, and the coordinator is killed at a random moment of a step. The
slowest step before the kill, and the slowest until some steps after its successor has recovered,
are compared with the median step before the kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from typing import Any, Final

from holdfast.arena.memory import Arena
from holdfast.errors import HoldfastError
from holdfast_bench.faulted_run import FAULT_STEP, FaultedRun, max_committed, min_committed
from holdfast_bench.results.figures import spread
from holdfast_bench.workloads import WORKLOADS

STEPS: Final = FAULT_STEP - 5
"""Steps measured before the kill; a run is warm after five."""
STEPS_AFTER_RECOVERY: Final = 10
"""Steps measured after the successor has recovered."""


class _KillCoordinator(FaultedRun):
    """Kills the coordinator once; its successor stops the run.

    Attributes:
        back_s: Seconds until the successor had the status of all agents.
        before, after: The slowest step before and after the kill, in median steps before it.
    """

    back_s = before = after = 0.0

    def inject(self, arena: Arena) -> None:
        seconds, killed_at = self.step_seconds()[-STEPS:], max_committed(arena)
        began = time.monotonic()
        os.kill(self.events("coordinator-started")[0]["pid"], signal.SIGKILL)
        self.wait(lambda: bool(self.events("coordinator-recovered")))
        self.back_s, back_at = time.monotonic() - began, max_committed(arena)
        self.wait(lambda: min_committed(arena) >= back_at + STEPS_AFTER_RECOVERY)
        usual = statistics.median(seconds)
        self.before = max(seconds) / usual
        self.after = max(self.step_seconds(killed_at)) / usual


def measure(workload: str, rounds: int, chance: random.Random) -> dict[str, Any]:
    """One row of the table."""
    kills = []
    for number in range(rounds):
        print(f"{workload}, round {number + 1}", file=sys.stderr)
        kills.append(_KillCoordinator(chance))
        kills[-1].run(workload)
        if kills[-1].generations > 1:
            raise HoldfastError("workers were interrupted although only the coordinator was killed")
    return {
        "workload": workload,
        "back_s": spread([each.back_s for each in kills], 3),
        "slowest_before": spread([each.before for each in kills], 2),
        "slowest_after": spread([each.after for each in kills], 2),
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="small,large")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    workloads, chance = options.workloads.split(","), random.Random(options.seed)
    if unknown := set(workloads) - WORKLOADS.keys():
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    rows = [measure(workload, options.rounds, chance) for workload in workloads]
    print(json.dumps({"benchmark": "coordinator", "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
