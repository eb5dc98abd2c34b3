"""What verify.recompute and portable numerics cost, relative to the same job without them.

Each round runs every way once, one after the other; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.scaling import Measured, run_holdfast
from holdfast_bench.workloads import WORKLOADS

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "verify.recompute=0.02": {"verify": {"recompute": 0.02}},
    "numerics=portable": {"numerics": "portable"},
}


def measure(workload: str, workers: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """One row per setting."""
    runs: dict[str, list[Measured]] = {setting: [] for setting in SETTINGS}
    for number in range(rounds):
        for setting, keys in SETTINGS.items():
            print(f"{workload}, round {number + 1}: {setting}", file=sys.stderr)
            runs[setting].append(run_holdfast(workload, workers, steps, **keys))
    rates = {setting: [run.samples_per_s for run in results] for setting, results in runs.items()}
    return [
        {
            "workload": workload,
            "workers": workers,
            "setting": setting,
            "samples_per_s": spread(samples_per_s),
            "step_of_default": ratio(rates["default"], samples_per_s),
        }
        for setting, samples_per_s in rates.items()
    ]


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    rows = [
        row
        for workload in options.workloads.split(",")
        for row in measure(workload, options.workers, options.steps, options.rounds)
    ]
    print(json.dumps({"benchmark": "overhead", "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
