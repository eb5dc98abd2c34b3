"""Trial: a run of holdfast that is started, waited for, injured and read back.

    train      a run, from its start to its end
    injure     a run in this process, which gets a fault at a random moment of a step

`launch` does the same with the processes of any system.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.arena.find import open_arena
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS, RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions, run
from holdfast_bench.workloads import job_keys

WORKERS: Final = 2
FAULT_STEP: Final = 25
RUN_TIMEOUT_S: Final = 300.0
AGENT_TIMEOUT_S: Final = 10.0
"""Longest time until an agent has opened its host's memory."""
POLL_S: Final = 0.001
AT_WORK: Final = (
    Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.COLLECT, Phase.REDUCE, Phase.OPTIMIZER,
)  # fmt: skip

Line = dict[str, Any]
T = TypeVar("T")


def wait_until(
    happened: Callable[[], bool],
    timeout_s: float,
    poll_s: float,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Poll until `happened()`; False after the timeout.

    Args:
        happened: The condition.
        timeout_s, poll_s: Limit, and time between polls.
        check: Called between polls; raises if waiting is in vain.
    """
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline:
            return False
        check()
        time.sleep(poll_s)
    return True


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Lines that a run of holdfast has recorded so far.

    Attributes:
        run_dir: The run directory.
    """

    run_dir: Path

    def events(self, *names: str) -> list[Line]:
        """The events of these names; all without one."""
        lines = _lines(self.run_dir / EVENTS)
        return [event for event in lines if event["event"] in names or not names]

    def steps(self) -> list[Line]:
        """The steps; one that was computed again is there twice."""
        return [line for line in _lines(self.run_dir / METRICS) if "loss" in line]

    def pid_of(self, rank: int) -> int:
        """The newest process of a rank."""
        started = self.events("worker-started")
        return int([event["pid"] for event in started if event["rank"] == rank][-1])


def phases_s(line: Mapping[str, Any], phases: Sequence[str]) -> float:
    """Seconds that a step has spent in some phases."""
    return sum((float(line["phases"].get(phase, 0.0)) for phase in phases), 0.0)


def _lines(path: Path) -> list[Line]:
    return list(json_lines.read(path)) if path.exists() else []


@contextmanager
def ended_by_signals(controls: Controls) -> Iterator[None]:
    """End the benchmark, too, if a signal has ended the run of the block, which handles signals.

    Raises:
        KeyboardInterrupt: One has.
    """
    try:
        yield
    finally:
        if controls.stop:
            raise KeyboardInterrupt


@contextmanager
def train(
    keys: Mapping[str, Any],
    options: LaunchOptions | None = None,
    folder: Path | None = None,
    placement: Placement = THIS_HOST,
) -> Iterator[RunRecords]:
    """The records of a run that has ended; its directory is deleted afterwards.

    Args:
        keys: Keys of the job.
        options: Options of the run.
        folder: Where the run directory is made; by default, among temporary files.
        placement: Hosts of the run; by default this one.

    Raises:
        HoldfastError: The run failed.
    """
    job = load.check(dict(keys), where="bench")
    options = options or LaunchOptions()
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        with (
            RunDirectory(Path(inner) / "run", job, resume=False) as directory,
            ended_by_signals(options.controls),
        ):
            run(directory, options, placement=placement)
        yield RunRecords(Path(inner) / "run")


class LiveRun:
    """A run of holdfast in another thread of this process.

    Attributes:
        records: Its records.
        arena: The memory of its host: events are too slow to measure milliseconds.
    """

    def __init__(self, run_dir: Path) -> None:
        self.records = RunRecords(run_dir)
        self.arena: Arena
        self.over = False

    def wait(self, happened: Callable[[], bool], timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Poll every millisecond until `happened()`.

        Raises:
            HoldfastError: It did not happen in time, or the run has ended.
        """
        error = HoldfastError(f"the expected event did not happen within {timeout_s:.0f} s")

        def check() -> None:
            if self.over:
                raise error

        if not wait_until(happened, timeout_s, POLL_S, check):
            raise error

    def wait_for_work(self, rank: int, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Poll every millisecond until a rank computes a step.

        Raises:
            HoldfastError: It did not in time.
        """
        self.wait(lambda: Phase(self.arena[rank, Word.PHASE]) in AT_WORK, timeout_s)

    def committed(self) -> list[int]:
        """Steps that each worker has committed."""
        return [self.arena[rank, Word.COMMITTED] for rank in range(WORKERS)]

    def newest_start(self) -> Line:
        """The event of the newest generation."""
        return self.records.events("generation-started")[-1]

    def open_arena(self) -> None:
        """Wait for the first agent, and open its arena."""
        self.wait(lambda: bool(self.records.events("agent-started")))
        pid = self.records.events("agent-started")[0]["pid"]
        found = list[int | None]()

        def is_open() -> bool:  # not while the process executes its program
            found.append(open_arena(pid))
            return found[-1] is not None

        self.wait(is_open, AGENT_TIMEOUT_S)
        fd = found[-1]
        assert fd is not None
        self.arena = Arena(fd)
        self.arena.close()  # the mapping stays


def injure(
    workload: str, chance: random.Random, inject: Callable[[LiveRun], T], **keys: object
) -> T:
    """Train until the fault's step, inject the fault, and stop the run.

    Args:
        workload: Name of the workload.
        chance: Draws the moment within a step.
        inject: Injects the fault; returns a measurement once the run has recovered.
        keys: Keys of the job that override those of the workload.

    Raises:
        HoldfastError: The run ended before it recovered.
    """
    controls = Controls()
    job = load.check({**job_keys(workload, WORKERS, steps=10_000), **keys}, where="benchmark")
    results = list[T]()
    errors = list[Exception]()
    with tempfile.TemporaryDirectory() as folder:
        live = LiveRun(Path(folder) / "run")

        def watch() -> None:
            try:
                live.open_arena()
                live.wait(lambda: min(live.committed()) >= FAULT_STEP)
                seconds = [line["seconds"] for line in live.records.steps() if line["step"] > 1]
                time.sleep(chance.random() * statistics.median(seconds))
                results.append(inject(live))
            except Exception as error:  # noqa: BLE001  # raised again where the run was started
                errors.append(error)
            finally:
                controls.stop = True

        with RunDirectory(live.records.run_dir, job, resume=False) as directory:
            thread = threading.Thread(target=watch)
            thread.start()
            try:
                run(directory, LaunchOptions(controls=controls))
            finally:
                live.over = True
                thread.join()
                if controls.interrupted:
                    raise KeyboardInterrupt
    if errors:
        raise errors[0]
    return results[0]
