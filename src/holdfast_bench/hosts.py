"""Cost of a network between hosts: a reduction, a step, a recovery.

The hosts are network namespaces of this machine (root and iproute2), so all share its cores.
"""

from __future__ import annotations

import argparse
from typing import Final

from holdfast.errors import JobError
from holdfast_bench.arguments import add_names, add_rounds, counts
from holdfast_bench.on_hosts import reduction, runs
from holdfast_bench.on_hosts.namespaces import UNSHAPED, Namespaces
from holdfast_bench.on_hosts.reduction import Row
from holdfast_bench.results.result import Measured
from holdfast_bench.workloads import WORKLOADS

MEASURES: Final = ("reduction", "step", "recovery")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--measure", MEASURES, "What to measure")
    parser.add_argument("--hosts", type=counts, default="2,3", help="Numbers of hosts.")
    parser.add_argument(
        "--workers", type=counts, default="1,2", help="Numbers of workers of each host."
    )
    parser.add_argument(
        "--sizes-kb",
        type=counts,
        default="64,1024,16384,262144",
        help="Sizes of the reduced gradient, KiB.",
    )
    parser.add_argument(
        "--link",
        default=UNSHAPED,
        help="Rate of each host's link, such as 1gbit; veth: not limited.",
    )
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train", "small,large")
    add_rounds(parser, 7)


def run(options: argparse.Namespace) -> Measured:
    """Measure every number of hosts and workers.

    Raises:
        JobError: There can be no network namespaces.
    """
    if missing := Namespaces.what_is_missing():
        raise JobError(missing)
    sizes = [each << 10 for each in options.sizes_kb]
    rows: list[Row] = []
    for hosts in options.hosts:
        for workers in options.workers:
            where = (hosts, workers, options.link)
            if "reduction" in options.measure:
                rows += reduction.rows(*where, sizes, options.rounds)
            for workload in options.workloads:
                if "step" in options.measure:
                    rows += runs.step_rows(*where, workload)
                if "recovery" in options.measure:
                    rows += runs.recovery_rows(*where, workload, options.rounds)
    return Measured(rounds=options.rounds, rows=rows)
