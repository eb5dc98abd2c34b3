"""A model that is divided over two workers: holdfast compared with stock PyTorch.

    whole           holdfast, with the whole model on each worker, for reference
    zero=3          holdfast with `parallel.zero=3`: each worker keeps its rows of the state
    pipeline=2      holdfast with `parallel.pipeline=2`: each worker has some of the layers
    FSDP2           `fully_shard`, under torchrun
    1F1B, GPipe     PyTorch's pipeline schedules, under torchrun

Those under torchrun get the allocator settings that holdfast gives its workers; two more ways show
what they reach with glibc's own.

Each round runs every way once, one after the other: first without checkpoints and snapshots, for
the throughput and the memory of a worker; then with a checkpoint every ten steps (PyTorch's are
DCP's), where one worker is killed at a random moment of a step, until both have committed a step
since. Pipelines have the same microbatches; all others have one backward pass per worker and step.
Memory is the largest proportional set size of a worker, in which shared memory counts once.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.job import load
from holdfast.launch.spawn import worker_environment
from holdfast_bench import restart
from holdfast_bench.arguments import add_names, add_rounds, count
from holdfast_bench.launch import PeerLaunch, ProcessSpec
from holdfast_bench.peers import peer_script
from holdfast_bench.peers.systems import Peer, torchrun
from holdfast_bench.results.figures import Spread, ratio, spread
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import attempt, in_rounds
from holdfast_bench.trial import WORKERS, LiveRun, completed, injure
from holdfast_bench.workloads import WORKLOADS, job_keys

WARM_STEPS: Final = 8
"""Steps at the start that are not counted."""
RUN_TIMEOUT_S: Final = 300.0
LOOK_S: Final = 0.2
"""Time between two looks at the memory of the workers."""
DIVIDED: Final = ("large", "lm")
"""Workloads that can be divided."""
DEFAULT_MALLOC: Final = ", default malloc"
STOCK: Final = {
    "FSDP2": "fsdp2",
    f"FSDP2{DEFAULT_MALLOC}": "fsdp2",
    "1F1B": "1f1b",
    f"1F1B{DEFAULT_MALLOC}": "1f1b",
    "GPipe": "gpipe",
}
STOCK_OF: Final = {"zero=3": "FSDP2", "pipeline=2": "1F1B"}
"""What PyTorch has in place of holdfast's ways."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run without a fault: its speed, and the most memory that a worker has had."""

    samples_per_s: float
    memory_mb: float


class PeakMemory:
    """The largest proportional set size of any of some processes, looked at in a thread.

    Args:
        pids: The processes that there are.
    """

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self.megabytes = 0.0
        self._pids = pids
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look until the end of the block."""
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for pid in self._pids():
                with suppress(OSError):  # it has ended
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
                    kib = int(rollup.partition("\nPss:")[2].split()[0])
                    self.megabytes = max(self.megabytes, 1.024e-3 * kib)


def train(workload: str, keys: dict[str, Any], steps: int) -> Training:
    """One run of holdfast, with more keys of the job."""
    unsaved = {"checkpoint": {"every_steps": 0, "memory": "never"}}
    wanted = {**job_keys(workload, WORKERS, WARM_STEPS + steps), **keys, **unsaved}
    job = load.check(wanted, where="benchmark")
    peaks = list[PeakMemory]()

    def watch(live: LiveRun) -> bool:
        def pids() -> list[int]:
            return [event["pid"] for event in live.records.events("worker-started")]

        peaks.append(PeakMemory(pids))
        with peaks[0].watched():  # until the last step: what comes after is no training
            live.reaches(WARM_STEPS + steps - 1, RUN_TIMEOUT_S)
        return live.reaches(math.inf, RUN_TIMEOUT_S)

    with completed(job, watch=watch) as records:
        counted = records.steps()[WARM_STEPS:]
    seconds = sum(line["seconds"] for line in counted)
    return Training(
        samples_per_s=wanted["batch"] * len(counted) / seconds, memory_mb=peaks[0].megabytes
    )


def recover(workload: str, keys: dict[str, Any], chance: random.Random) -> float:
    """Seconds that a run of holdfast takes to recover, with more keys of the job.

    Raises:
        HoldfastError: It did not.
    """
    saving = {"checkpoint": {"every_steps": peer_script.EVERY}}
    return injure(workload, chance, partial(restart.kill, chance), **keys, **saving)


def stock(way: str, microbatches: int, *more: str) -> Peer:
    """Stock PyTorch's way to divide a model."""
    words = ("--way", STOCK[way], "--microbatches", str(microbatches), *more)

    def commands(python: str, options: Sequence[str]) -> list[ProcessSpec]:
        script = ["-m", "holdfast_bench.peers.parallel_script"]
        tuned = {} if way.endswith(DEFAULT_MALLOC) else worker_environment()
        return torchrun(python, [*script, *words, *options], tuned)

    return Peer(name=way, modules=("torch",), commands=commands)


def train_stock(workload: str, way: str, microbatches: int, steps: int) -> Training:
    """One run of stock PyTorch."""
    peer = stock(way, microbatches, "--steps", str(WARM_STEPS + steps))
    with tempfile.TemporaryDirectory() as folder:
        commands = peer.commands(sys.executable, ["--workload", workload, "--dir", folder])
        with PeerLaunch(commands, Path(folder)) as launch:

            def pids() -> list[int]:
                return [step["pid"] for rank in range(WORKERS) for step in launch.steps(rank)[-1:]]

            peak = PeakMemory(pids)
            with peak.watched():
                launch.join(RUN_TIMEOUT_S)
            counted = launch.steps(0)[WARM_STEPS:]
    seconds = counted[-1]["ended"] - counted[0]["began"]
    batch = WORKLOADS[workload].batch_size * WORKERS
    return Training(samples_per_s=batch * len(counted) / seconds, memory_mb=peak.megabytes)


def recover_stock(workload: str, way: str, microbatches: int, chance: random.Random) -> float:
    """Seconds that stock PyTorch takes to recover.

    Raises:
        HoldfastError: It did not.
    """
    peer = stock(way, microbatches)
    return peer.recover(sys.executable, workload, signal.SIGKILL, chance).committed_s


def jobs(microbatches: int) -> dict[str, dict[str, Any]]:
    """The keys of each of holdfast's ways."""
    return {
        "whole": {"shards": WORKERS},
        "zero=3": {"shards": WORKERS, "parallel": {"zero": 3}},
        "pipeline=2": {"shards": microbatches, "parallel": {"pipeline": 2}},
    }


def trainings(workload: str, microbatches: int, steps: int) -> Mapping[str, Callable[[], Training]]:
    """The runs without a fault, by way."""
    ours = {way: partial(train, workload, keys, steps) for way, keys in jobs(microbatches).items()}
    plain = {way: partial(train_stock, workload, way, microbatches, steps) for way in STOCK}
    return {**ours, **plain}


def recoveries(
    workload: str, microbatches: int, chance: random.Random
) -> Mapping[str, Callable[[], float]]:
    """The runs with a kill, by way."""
    keys_of = jobs(microbatches)
    ours = {way: partial(recover, workload, keys, chance) for way, keys in keys_of.items()}
    plain = {way: partial(recover_stock, workload, way, microbatches, chance) for way in STOCK}
    return {**ours, **plain}


def training_rows(
    workload: str, ways: Mapping[str, Callable[[], Training]], rounds: int
) -> list[dict[str, Any]]:
    """One row per way; a run that failed is left out."""
    trained = _attempts(ways, rounds, f"{workload}, training")
    rates = {w: [run.samples_per_s if run else None for run in runs] for w, runs in trained.items()}
    sizes = {w: [run.memory_mb if run else None for run in runs] for w, runs in trained.items()}
    return [
        {
            "measure": "training",
            "workload": workload,
            "way": way,
            "samples_per_s": _spread(rates[way], 1),
            "of_whole": _ratio(rates[way], rates["whole"]),
            "of_stock": _ratio(rates[way], rates[STOCK_OF[way]]) if way in STOCK_OF else None,
            "memory_mb": _spread(sizes[way], 0),
            "memory_of_whole": _ratio(sizes[way], sizes["whole"]),
            "failed": rates[way].count(None),
        }
        for way in trained
    ]


def recovery_rows(
    workload: str, ways: Mapping[str, Callable[[], float]], rounds: int
) -> list[dict[str, Any]]:
    """One row per way; a run that failed is left out."""
    seconds = _attempts(ways, rounds, f"{workload}, recovery")
    return [
        {
            "measure": "recovery",
            "workload": workload,
            "way": way,
            "committed_s": _spread(tries, 2),
            "of_stock": _ratio(tries, seconds[STOCK_OF[way]]) if way in STOCK_OF else None,
            "failed": tries.count(None),
        }
        for way, tries in seconds.items()
    ]


def _attempts(
    ways: Mapping[str, Callable[[], T]], rounds: int, about: str
) -> dict[str, list[T | None]]:
    attempts = {way: partial(attempt, run, way) for way, run in ways.items()}
    return in_rounds(attempts, rounds, about)


def _spread(values: Sequence[float | None], digits: int) -> Spread | None:
    measured = [value for value in values if value is not None]
    return spread(measured, digits) if measured else None


def _ratio(values: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The ratio within the rounds in which both have succeeded."""
    both = zip(values, others, strict=True)
    pairs = [(value, other) for value, other in both if value is not None and other is not None]
    return ratio(*zip(*pairs, strict=True)) if pairs else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--workloads", DIVIDED, "Workloads to train")
    parser.add_argument("--steps", type=count, default=32, help="Number of measured steps.")
    parser.add_argument("--microbatches", type=count, default=4, help="Of pipelines.")
    add_rounds(parser, 3)
    add_names(parser, "--measure", ("training", "recovery"), "What to measure")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the moments of faults.")


def run(options: argparse.Namespace) -> Measured:
    """Measure every workload."""
    rows = []
    for workload in options.workloads:
        same = (workload, options.microbatches)
        chance = random.Random(options.seed)  # chance, not secrecy
        if "training" in options.measure:
            rows += training_rows(workload, trainings(*same, options.steps), options.rounds)
        if "recovery" in options.measure:
            rows += recovery_rows(workload, recoveries(*same, chance), options.rounds)
    return Measured(rounds=options.rounds, rows=rows)
