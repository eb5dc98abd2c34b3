"""Cost of a network between hosts: a reduction, a step, a recovery.

The hosts are network namespaces of this machine (root and iproute2), so all share its cores.
"""

from __future__ import annotations

import json
from typing import Final

from holdfast_bench.arguments import count, counts, parser_of
from holdfast_bench.on_hosts import reduction, runs
from holdfast_bench.on_hosts.namespaces import Namespaces
from holdfast_bench.on_hosts.reduction import UNSHAPED, Row

MEASURES: Final = ("reduction", "step", "recovery")


def main() -> None:
    """Measure and print one JSON object."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--measure", default=",".join(MEASURES), help="What to measure: reduction, step, recovery."
    )
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
    parser.add_argument(
        "--workloads",
        default="small,large",
        help="Workloads, with commas: small, large, lm, vit, vit-bf16.",
    )
    parser.add_argument("--rounds", type=count, default=7, help="Number of measurements.")
    options = parser.parse_args()
    measures = options.measure.split(",")
    if unknown := set(measures) - set(MEASURES):
        parser.error(f"no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    if missing := Namespaces.what_is_missing():
        parser.error(missing)
    sizes = [each << 10 for each in options.sizes_kb]
    workloads = options.workloads.split(",")
    rounds = options.rounds
    rows: list[Row] = []
    for hosts in options.hosts:
        for workers in options.workers:
            if "reduction" in measures:
                rows += reduction.rows(hosts, workers, options.link, sizes, rounds)
            for workload in workloads:
                if "step" in measures:
                    rows += runs.step_rows(hosts, workers, options.link, workload)
                if "recovery" in measures:
                    rows += runs.recovery_rows(hosts, workers, options.link, workload, rounds)
    print(json.dumps({"benchmark": "hosts", "rounds": rounds, "rows": rows}))


if __name__ == "__main__":
    main()
