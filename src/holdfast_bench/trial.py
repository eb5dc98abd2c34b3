"""Trial: a run of holdfast that is started, waited for, injured and read back.

    train      a run, from its start to its end
    completed  the same as users run it, on this machine or where an engine places it
    injure     a run in this process, which gets a fault at a random moment of a step

`launch` does the same with the processes of any system.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.api.reserve import engine_hosts
from holdfast.api.train import run_job
from holdfast.arena.find import open_arena
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.errors import HoldfastError, JobError
from holdfast.job import load
from holdfast.job.train_job import TrainRequest
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS, RECOMPUTED, RESULT, RunDirectory
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
LOOK_S: Final = 0.1
"""Time between two looks at the records of a run."""
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
        """The steps; of one that was computed again, the line that counts."""
        return [line for line in _lines(self.run_dir / METRICS) if "loss" in line]

    def replaced(self) -> list[Line]:
        """The steps that were computed again, as they were before."""
        return [line for line in _lines(self.run_dir / RECOMPUTED) if "loss" in line]

    def result(self) -> Line:
        """The result of a run that has ended; see `completed`."""
        found: Line = json.loads((self.run_dir / RESULT).read_text(encoding="utf-8"))
        return found

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
        placement: Its hosts.
        arena: The memory of its host: events are too slow to measure milliseconds.
        over: True if it has ended.
        ended_here: True if what watches it has ended it.
    """

    def __init__(self, run_dir: Path, placement: Placement) -> None:
        self.records = RunRecords(run_dir)
        self.placement = placement
        self.arena: Arena
        self.over = False
        self.ended_here = False

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

    def reaches(self, steps: float, timeout_s: float) -> bool:
        """Wait until so many steps are recorded; False if the run ends before.

        Raises:
            JobError: They take too long.
        """

        def has_come() -> bool:
            return self.over or (steps < math.inf and len(self.records.steps()) >= steps)

        if wait_until(has_come, timeout_s, LOOK_S):
            return not self.over
        raise JobError(
            f"only {len(self.records.steps())} steps within {timeout_s:.0f} s; raise --timeout-s, "
            "or measure fewer steps"
        )

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


@contextmanager
def completed(
    job: TrainRequest, on: str = "", watch: Callable[[LiveRun], bool] = lambda _: False
) -> Iterator[RunRecords]:
    """The records of a run that has ended, with its result; its directory is deleted afterwards.

    Args:
        job: The job.
        on: Engine that places it, as in `--on`; empty for this machine.
        watch: Called in a thread while it runs. It stops the run if it returns True, and ends it at
            once if it raises.

    Raises:
        HoldfastError: The run failed.
        KeyboardInterrupt: A signal has ended it.
        Exception: What `watch` raised.
    """
    controls = Controls()
    options = LaunchOptions(controls=controls)
    hosts = engine_hosts(job, on) if on else nullcontext(THIS_HOST)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool, hosts as placement:
        run_dir = Path(folder) / "run"
        live = LiveRun(run_dir, placement)
        watching = pool.submit(_watched, live, controls, watch)
        try:
            run_job(job, options, run_dir=run_dir, resume=False, placement=placement)
        finally:
            live.over = True
            if live.ended_here:
                watching.result()
            elif controls.stop:
                raise KeyboardInterrupt
        watching.result()
        yield live.records


def _watched(live: LiveRun, controls: Controls, watch: Callable[[LiveRun], bool]) -> None:
    try:
        live.ended_here = watch(live)
    except Exception:
        live.ended_here = not live.over
        controls.abort = live.ended_here
        raise
    finally:
        controls.stop |= live.ended_here


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
    job = load.check({**job_keys(workload, WORKERS, steps=10_000), **keys}, where="benchmark")
    results = list[T]()

    def watch(live: LiveRun) -> bool:
        live.open_arena()
        live.wait(lambda: min(live.committed()) >= FAULT_STEP)
        seconds = [line["seconds"] for line in live.records.steps() if line["step"] > 1]
        time.sleep(chance.random() * statistics.median(seconds))
        results.append(inject(live))
        return True

    with completed(job, watch=watch):
        return results[0]
