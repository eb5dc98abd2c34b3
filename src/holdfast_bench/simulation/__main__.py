"""Endurance at any size: `python -m holdfast_bench.simulation 1000 3600 110`.

The arguments are hosts, seconds of virtual time, and how often faults are injected into a rack.
"""

from __future__ import annotations

import sys
import time

from holdfast_bench.simulation.endurance import endure


def main() -> None:
    """Simulate it, and print what happened and how long it took."""
    hosts, seconds, bursts = map(int, sys.argv[1:])
    begin = time.perf_counter()
    endured = endure(hosts=hosts, seconds=seconds, bursts=bursts, seed=0)
    print(f"{hosts} hosts, {seconds} s: {endured} in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
