"""Cost of checkpoints in training, and the speed of loading, compared with what people use.

    saving    how much longer training takes, and what each save costs; see `saving` and `savers`
    memory    what snapshots in memory cost that `checkpoint.memory: auto` keeps
    floors    what no system can be faster than
    loading   the time until a state of some size is in memory again, and verified

Training is real: the compute of both workloads is what their steps take on this machine, so saves
compete with it for the cores, the memory and its caches. All systems have the same models, batches,
threads and allocator settings; the peers train with stock DDP, or with nothing if alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast_bench.arguments import count, parser_of
from holdfast_bench.checkpoint import floors, loading, memory, saving
from holdfast_bench.checkpoint.runs import WindowRunner
from holdfast_bench.checkpoint.saving import SavingPlan
from holdfast_bench.checkpoint.systems import OURS, PEERS
from holdfast_bench.peers.peer_script import state_of, train_step
from holdfast_bench.workloads import WORKLOADS

MEASURES: Final = ("saving", "memory", "floors", "loading")
SYSTEMS: Final = (*OURS, *PEERS)


def main() -> None:
    """Measure and print one JSON object."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--measure",
        default=",".join(MEASURES),
        help="What to measure: saving, memory, floors, loading.",
    )
    parser.add_argument(
        "--workloads",
        default="large,lm",
        help="Workloads, with commas: small, large, lm, vit, vit-bf16.",
    )
    parser.add_argument("--workers", default="1,2", help="Numbers of workers.")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="Systems to compare.")
    parser.add_argument(
        "--every", default="25,10,5,1", help="Steps from one save to the next, with commas."
    )
    parser.add_argument(
        "--steps", type=count, default=20, help="Measured steps; more where a period is longer."
    )
    parser.add_argument("--load-mb", type=count, default=2000, help="Size of the loaded state, MB.")
    parser.add_argument("--rounds", type=count, default=7, help="Number of measurements.")
    parser.add_argument("--path", type=Path, default=Path(), help="Directory on the measured disk.")
    options = parser.parse_args()
    for name, known in (("measure", MEASURES), ("workloads", WORKLOADS), ("systems", SYSTEMS)):
        given = getattr(options, name).split(",")
        if unknown := [each for each in given if each not in known]:
            parser.error(f"--{name}: no {', '.join(unknown)}; there are {', '.join(known)}")
    for name in ("workers", "every"):
        if not all(n.isdecimal() and int(n) for n in getattr(options, name).split(",")):
            parser.error(f"--{name} {getattr(options, name)} must be numbers above 0, such as 1,2")
    try:
        rows = measure(options)
    except OSError as error:
        parser.exit(1, f"bench checkpoint: {error}\n")
    except HoldfastError as error:
        parser.exit(1, f"bench checkpoint: {error}\n")
    print(json.dumps({"benchmark": "checkpoint", "rounds": options.rounds, "rows": rows}))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all that the options ask for.

    Raises:
        HoldfastError: It cannot be measured.
        OSError: The disk is full, or cannot be written.
    """
    plan = SavingPlan(
        systems=options.systems.split(","),
        periods=[int(every) for every in options.every.split(",")],
        least_steps=options.steps,
        rounds=options.rounds,
    )
    measures = options.measure.split(",")
    rows = list[dict[str, Any]]()
    with (
        tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=options.path) as folder,
        ForkServer(spawn(WORKER), ["holdfast_bench.workloads"]) as forks,
    ):
        where = Path(folder).absolute()
        for workload in options.workloads.split(","):
            for workers in map(int, options.workers.split(",")):
                if "floors" in measures:
                    rows.append(floors.row(where, workload, workers, _state_bytes(workload)))
                runner = WindowRunner(workload=workload, workers=workers, folder=where, forks=forks)
                if "saving" in measures:
                    rows += saving.rows(runner, plan)
                if "memory" in measures:
                    rows.append(memory.row(runner, options.rounds))
        if "loading" in measures:
            rows += loading.rows(where, forks, options.load_mb, options.rounds)
    return rows


def _state_bytes(name: str) -> int:
    """The size of the parameters and the optimizer's state of a workload."""
    workload = WORKLOADS[name]()
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    train_step(workload, model, optimizer, rank=0, step=0)  # after which the optimizer has a state
    return sum(tensor.nbytes for tensor in state_of(model, optimizer).values())


if __name__ == "__main__":
    main()
