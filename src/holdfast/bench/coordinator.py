"""What workers notice of the death of their coordinator: how long their steps take meanwhile.

Each run trains with two workers, and at a random moment of a step the coordinator is killed. The
slowest of the steps that follow, until the next coordinator knows the run and a while longer, is
set beside the median of those before; so is the slowest of those, which tells how much is chance.
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
from holdfast.bench.faulted_run import FAULT_STEP, FaultedRun, furthest, least
from holdfast.bench.figures import spread
from holdfast.bench.workloads import WORKLOADS
from holdfast.errors import HoldfastError

STEPS: Final = FAULT_STEP - 5
"""How many are looked at before; a run is warm after five."""
MORE: Final = 10
"""And how many after the next coordinator is there."""


class _KillCoordinator(FaultedRun):
    """Kills it once, and lets the next one stop the run.

    Attributes:
        back_s: How long it took until the next one knew how all are.
        before, after: The slowest step of each side, of the median step before.
    """

    back_s = before = after = 0.0

    def strike(self, arena: Arena) -> None:
        seconds, struck_at = self.step_seconds()[-STEPS:], furthest(arena)
        began = time.monotonic()
        os.kill(self.events("coordinator-started")[0]["pid"], signal.SIGKILL)
        self.wait(lambda: bool(self.events("coordinator-recovered")))
        self.back_s, back_at = time.monotonic() - began, furthest(arena)
        self.wait(lambda: least(arena) >= back_at + MORE)
        usual = statistics.median(seconds)
        self.before = max(seconds) / usual
        self.after = max(self.step_seconds(struck_at)) / usual


def measure(workload: str, rounds: int, chance: random.Random) -> dict[str, Any]:
    """A row."""
    found = []
    for number in range(rounds):
        print(f"{workload}, round {number + 1}", file=sys.stderr)
        found.append(_KillCoordinator(chance))
        found[-1].run(workload)
        if found[-1].generations > 1:
            raise HoldfastError("the workers were called away though only the coordinator died")
    return {
        "workload": workload,
        "back_s": spread([each.back_s for each in found], 3),
        "slowest_before": spread([each.before for each in found], 2),
        "slowest_after": spread([each.after for each in found], 2),
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
