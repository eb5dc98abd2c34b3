"""Throughput of holdfast, of what people run without it, and of independent processes.

    independent   as many processes as workers, which do not communicate: the upper limit
    one process   a plain process with the whole batch and a thread per worker
    DDP           as many processes as workers, under stock DDP
    holdfast      with a shard per worker, with 8 shards, and with one worker of several threads

Each round runs every way once, one after the other, so that a slow minute of the machine hits all
of them; ratios are taken within a round. The batch of a worker is constant (weak scaling). All get
the allocator settings that holdfast gives its workers; two more ways show what plain processes
reach with glibc's own settings.

With `--job`, your own job is run on `--hosts` hosts instead, on this machine or with `--on`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.launch.spawn import worker_environment
from holdfast_bench import own_job
from holdfast_bench.arguments import add_names, add_rounds, count, counts
from holdfast_bench.launch import PeerLaunch, ranks
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import in_rounds
from holdfast_bench.trial import phases_s, train
from holdfast_bench.workloads import WORKLOADS, job_keys

WARM_STEPS: Final = 8
"""Steps at the start that are not counted."""
RUN_TIMEOUT_S: Final = 600.0
ONE: Final = "one process"
WITHOUT_US: Final = (ONE, f"{ONE}, default malloc", "DDP")
"""What people run without holdfast; the best of a round is compared with."""
PHASES: Final = {
    "compute": ("forward", "backward"),
    "reduce": ("collect", "reduce", "wait_reduce"),
    "update": ("optimizer",),
    "data": ("data",),
    "wait": ("wait",),
}
"""What a run says it has spent its time on, by the columns of the table."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run: samples per second, and the seconds of each phase if they are known."""

    samples_per_s: float
    phases: dict[str, float]


def run_plain(
    workload: str,
    processes: int,
    steps: int,
    *,
    ddp: bool = False,
    threads: int = 1,
    batch: int | None = None,
    tuned: bool = True,
) -> Throughput:
    """Run plain processes, under DDP or alone; counted from a common start.

    Args:
        workload: Its name.
        processes: How many.
        steps: Counted steps of each.
        ddp: True if they train together.
        threads: Threads of each.
        batch: Samples of each process and step; by default the workload's.
        tuned: True if they get holdfast's allocator settings.
    """
    batch = batch or WORKLOADS[workload].batch_size
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    with tempfile.TemporaryDirectory() as folder:
        commands = ranks(
            "holdfast_bench.peers.peer_script",
            processes,
            {**(worker_environment() if tuned else {}), **environment},
            workload=workload,
            dir=folder,
            warm_steps=WARM_STEPS,
            steps=steps,
            threads=threads,
            batch=batch,
            **({"ddp": True} if ddp else {}),
        )
        with PeerLaunch(commands, Path(folder)) as launch:
            launch.join(RUN_TIMEOUT_S)
            counted = [launch.steps(rank)[WARM_STEPS:] for rank in range(processes)]
    rate = sum(steps / (of_one[-1]["ended"] - of_one[0]["began"]) for of_one in counted)
    return Throughput(rate * batch, {})


def run_holdfast(workload: str, workers: int, steps: int, **keys: Any) -> Throughput:
    """One run of holdfast, with more keys of the job; counted from its metrics."""
    job = {**job_keys(workload, workers, WARM_STEPS + steps), **keys}
    with train(job) as records:
        counted = records.steps()[WARM_STEPS:]
    seconds = sum(line["seconds"] for line in counted)
    phases = {
        column: sum(phases_s(line, phases) for line in counted) / seconds
        for column, phases in PHASES.items()
    }
    return Throughput(job["batch"] * len(counted) / seconds, phases)


def ways(workload: str, workers: int, steps: int) -> dict[str, Callable[[], Throughput]]:
    """The systems that are compared, by name."""
    plain = partial(run_plain, workload, workers, steps)
    threads = min(workers, len(os.sched_getaffinity(0)))
    batch = WORKLOADS[workload].batch_size * workers
    one = partial(run_plain, workload, 1, steps, threads=threads, batch=batch)
    ours = partial(run_holdfast, workload, workers, steps)
    commands: dict[str, Callable[[], Throughput]] = {
        "independent": plain,
        "independent, default malloc": partial(plain, tuned=False),
        ONE: one,
        f"{ONE}, default malloc": partial(one, tuned=False),
        "DDP": partial(plain, ddp=True),
        f"holdfast, {workers} shards": ours,
    }
    if workers < 8:
        commands["holdfast, 8 shards"] = partial(ours, shards=8)
    if workers > 1:
        commands[f"holdfast, 1 worker of {threads} threads"] = partial(
            run_holdfast, workload, 1, steps, threads_per_worker=threads, batch=batch
        )
    return commands


def measure(workload: str, workers: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """One row per system."""
    runs = in_rounds(ways(workload, workers, steps), rounds, f"{workload}, {workers} workers")
    rates = {way: [run.samples_per_s for run in results] for way, results in runs.items()}
    best = [max(each) for each in zip(*(rates[way] for way in WITHOUT_US), strict=True)]
    return [
        {
            "workload": workload,
            "workers": workers,
            "way": way,
            "samples_per_s": spread(rates[way]),
            "of_independent": ratio(rates[way], rates["independent"]),
            "of_ddp": ratio(rates[way], rates["DDP"]),
            "of_best": ratio(rates[way], best),
            **{
                f"{phase}_share": spread([run.phases[phase] for run in results], 3)["median"]
                for phase in PHASES
                if results[0].phases
            },
        }
        for way, results in runs.items()
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train")
    parser.add_argument("--workers", type=counts, default="1,2,4", help="World sizes to measure.")
    parser.add_argument("--steps", type=count, default=48, help="Number of measured steps.")
    add_rounds(parser, 5)
    own = own_job.add_options(parser)
    own_job.add_hosts(own, "1,2,4")


def run(options: argparse.Namespace) -> Measured:
    """Measure every workload with every number of workers, or a job on every number of hosts.

    Raises:
        JobError: The job cannot be measured.
    """
    if options.job:
        own = own_job.of_options(options)
        found = own_job.scaling(own, options.hosts, options.rounds, options.steps)
        return Measured(rounds=options.rounds, rows=found)
    rows = [
        row
        for workload in options.workloads
        for workers in options.workers
        for row in measure(workload, workers, options.steps, options.rounds)
    ]
    return Measured(rounds=options.rounds, rows=rows)
