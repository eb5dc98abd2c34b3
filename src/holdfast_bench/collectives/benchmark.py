"""Speed of an all-reduce by size, with the columns of nccl-tests, compared with gloo and MPI.

Every worker is a process. In each round the systems take turns, and the time is that of the slowest
worker. algbw is the size over the time; busbw, 2 (n - 1)/n of that, is the rate at which a member
of n must at least send. Then the sum of whole numbers is compared, element by element: wrong.

The workers are on one host and share memory, or each is a host of its own, with connections over
loopback, in plain or encrypted. gloo always sends over loopback, in plain. MPI shares memory where
the others do, and else sends over loopback, in plain.

    tree      the exact tree of a job, into the one result that the workers of a host share
    ring, …   the algorithms of the job key `collective`, in place
    gloo      torch.distributed's all-reduce, over TCP on loopback
    mpi       Open MPI's MPI_Allreduce, in place; left out where mpi4py or mpiexec is not installed
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast_bench.arguments import add_names, add_rounds, counts
from holdfast_bench.collectives.members import MEMORY, SYSTEMS, TRANSPORTS, Taken, measure
from holdfast_bench.collectives.mpi import NAME as MPI
from holdfast_bench.collectives.mpi import what_is_missing
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.results.result import Measured

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--workers", type=counts, default="2", help="Numbers of workers.")
    parser.add_argument(
        "--sizes-kb",
        type=counts,
        default="4,64,1024,16384,65536,262144",
        help="Sizes of the vector, KiB.",
    )
    add_names(parser, "--transports", TRANSPORTS, "Transports between the workers", MEMORY)
    add_names(parser, "--systems", SYSTEMS, "Systems")
    parser.add_argument(
        "--peers-python",
        metavar="PATH",
        default=sys.executable,
        help="Interpreter of the workers of MPI.",
    )
    add_rounds(parser, 7)


def run(options: argparse.Namespace) -> Measured:
    """Measure every number of workers with every size.

    Raises:
        HoldfastError: A worker failed.
        JobError: The interpreter of MPI is none.
    """
    systems, python = options.systems, options.peers_python
    absent: dict[str, str] = {}
    if MPI in systems and (reason := what_is_missing(python)):
        absent[MPI] = reason
        print(f"{MPI} is left out: {reason}", file=sys.stderr)
        systems = [name for name in systems if name != MPI]
    rows: list[Row] = []
    for transport, workers, size_kb in itertools.product(
        options.transports, options.workers, options.sizes_kb
    ):
        print(f"{transport}, {workers} workers, {size_kb} KiB", file=sys.stderr)
        size = size_kb << 10
        taken = measure(workers, size, transport, systems, options.rounds, python)
        rows += [{"transport": transport} | _row(name, workers, size, taken) for name in systems]
    return Measured(rounds=options.rounds, rows=rows, absent=absent)


def _row(system: str, workers: int, size: int, of_systems: Mapping[str, Taken]) -> Row:
    taken = of_systems[system]
    times_us = [1e6 * seconds for seconds in taken.seconds]
    rates = [size / seconds / 1e9 for seconds in taken.seconds]
    row = {
        "system": system,
        "workers": workers,
        "size_bytes": size,
        "type": "float",
        "time_us": spread(times_us, 1),
        "algbw_gb_per_s": _median(rates),
        "busbw_gb_per_s": _median([2 * (workers - 1) / workers * rate for rate in rates]),
        "wrong": taken.wrong,
    }
    for name in ("gloo", MPI):
        if name in of_systems:
            row[f"speed_of_{name}"] = ratio(of_systems[name].seconds, taken.seconds)
    return row


def _median(values: Sequence[float]) -> float:
    return spread(values, 3)["median"]
