"""Throughput of holdfast, of what people run without it, and of independent processes.

    independent   as many processes as workers, which do not communicate: the upper limit
    one process   a plain process with the whole batch and a thread per worker
    DDP           as many processes as workers, under stock DDP
    holdfast      with a shard per worker, with 8 shards, and with one worker of several threads

Each round runs every way once, one after the other, so that a slow minute of the machine hits all
of them; ratios are taken within a round. The batch of a worker is constant (weak scaling). All get
the allocator settings that holdfast gives its workers; two more ways show what plain processes
reach with glibc's own settings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.launch.spawn import worker_environment
from holdfast_bench.arguments import count, counts, parser_of
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.trial import train
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
    count = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast_bench.peers.peer_script", "--workload", workload]
        command += ["--warm-steps", str(WARM_STEPS), "--steps", str(steps)]
        command += ["--threads", str(threads), "--batch", str(batch)]
        command += ["--world-size", str(processes), "--store", f"{folder}/store"]
        command += ["--ddp"] if ddp else []
        children = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                env={**(worker_environment() if tuned else os.environ), **count},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            texts = [child.communicate(timeout=RUN_TIMEOUT_S)[0] for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
    if any(len(text.split()) != 1 + steps for text in texts):  # some fail after all is measured
        raise HoldfastError(f"a plain process of {workload} failed; its words are above")
    ends = [[float(end) for end in text.split()] for text in texts]
    rate = sum(steps / (times[-1] - times[0]) for times in ends)
    return Throughput(rate * batch, {})


def run_holdfast(workload: str, workers: int, steps: int, **keys: Any) -> Throughput:
    """One run of holdfast, with more keys of the job; counted from its metrics."""
    job = {**job_keys(workload, workers, WARM_STEPS + steps), **keys}
    with train(job) as records:
        counted = records.steps()[WARM_STEPS:]
    seconds = sum(line["seconds"] for line in counted)
    phases = {
        column: sum(line["phases"].get(phase, 0.0) for line in counted for phase in phases)
        / seconds
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
    runs: dict[str, list[Throughput]] = {}
    for number in range(rounds):
        for way, measured in ways(workload, workers, steps).items():
            print(f"{workload}, {workers} workers, round {number + 1}: {way}", file=sys.stderr)
            runs.setdefault(way, []).append(measured())
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


def main() -> None:
    """Measure and print one JSON object."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--workloads",
        default=",".join(WORKLOADS),
        help="Workloads, with commas: small, large, lm, vit, vit-bf16.",
    )
    parser.add_argument("--workers", type=counts, default="1,2,4", help="World sizes to measure.")
    parser.add_argument("--steps", type=count, default=48, help="Measured steps.")
    parser.add_argument("--rounds", type=count, default=5, help="Number of measurements.")
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    rows = [
        row
        for workload in options.workloads.split(",")
        for workers in options.workers
        for row in measure(workload, workers, options.steps, options.rounds)
    ]
    print(json.dumps({"benchmark": "scaling", "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
