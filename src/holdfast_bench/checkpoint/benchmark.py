"""Cost of checkpoints in training, and the speed of loading, compared with what people use.

    saving    how much longer training takes, and what each save costs; see `saving` and `savers`
    memory    what snapshots in memory cost that `checkpoint.memory: always` keeps
    floors    what no system can be faster than
    loading   the time until a state of some size is in memory again, and verified

Training is real: the compute of both workloads is what their steps take on this machine, so saves
compete with it for the cores, the memory and its caches. All systems have the same models, batches,
threads and allocator settings; the peers train with stock DDP, or with nothing if alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, Final

from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast_bench.arguments import add_names, add_rounds, count, counts
from holdfast_bench.checkpoint import floors, loading, memory, saving
from holdfast_bench.checkpoint.runs import WindowRunner
from holdfast_bench.checkpoint.saving import SavingPlan
from holdfast_bench.checkpoint.systems import OURS, PEERS
from holdfast_bench.peers.peer_script import state_of, train_step
from holdfast_bench.results.result import Measured
from holdfast_bench.workloads import WORKLOADS

MEASURES: Final = ("saving", "memory", "floors", "loading")
SYSTEMS: Final = (*OURS, *PEERS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--measure", MEASURES, "What to measure")
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train", "large,lm")
    parser.add_argument("--workers", type=counts, default="1,2", help="Numbers of workers.")
    add_names(parser, "--systems", SYSTEMS, "Systems to compare")
    parser.add_argument(
        "--every", type=counts, default="25,10,5,1", help="Steps from one save to the next."
    )
    parser.add_argument(
        "--steps", type=count, default=20, help="Measured steps; more where a period is longer."
    )
    parser.add_argument("--load-mb", type=count, default=2000, help="Size of the loaded state, MB.")
    add_rounds(parser, 7)
    parser.add_argument("--path", type=Path, default=Path(), help="Directory on the measured disk.")


def run(options: argparse.Namespace) -> Measured:
    """Measure all that the options ask for.

    Raises:
        HoldfastError: It cannot be measured.
        OSError: The disk is full, or cannot be written.
    """
    plan = SavingPlan(
        systems=options.systems,
        periods=options.every[::-1],
        least_steps=options.steps,
        rounds=options.rounds,
    )
    measures = options.measure
    rows = list[dict[str, Any]]()
    with (
        tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=options.path) as folder,
        ForkServer(spawn(WORKER), ["holdfast_bench.workloads"]) as forks,
    ):
        where = Path(folder).absolute()
        for workload in options.workloads:
            for workers in options.workers:
                if "floors" in measures:
                    rows.append(floors.row(where, workload, workers, _state_bytes(workload)))
                runner = WindowRunner(workload=workload, workers=workers, folder=where, forks=forks)
                if "saving" in measures:
                    rows += saving.rows(runner, plan)
                if "memory" in measures:
                    rows.append(memory.row(runner, options.rounds))
        if "loading" in measures:
            rows += loading.rows(where, forks, options.load_mb, options.rounds)
    return Measured(rounds=options.rounds, rows=rows)


def _state_bytes(name: str) -> int:
    """The size of the parameters and the optimizer's state of a workload."""
    workload = WORKLOADS[name]()
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    train_step(workload, model, optimizer, rank=0, step=0)  # after which the optimizer has a state
    return sum(tensor.nbytes for tensor in state_of(model, optimizer).values())
