"""A run of a workload with one fault, injected at a random moment of a step."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.arena.find import open_arena
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS, RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.run import LaunchOptions, run
from holdfast_bench.workloads import job_keys

WORKERS: Final = 2
FAULT_STEP: Final = 25
POLL_INTERVAL_S: Final = 0.001
RUN_TIMEOUT_S: Final = 300.0
AGENT_TIMEOUT_S: Final = 10.0
"""How long an agent may take to open its host's memory."""
AT_WORK: Final = (
    Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.COLLECT, Phase.REDUCE, Phase.OPTIMIZER,
)  # fmt: skip


class FaultedRun:
    """Trains until the fault's step, injects the fault, measures the recovery, and stops the run.

    Args:
        chance: Draws the moment of the fault.

    Attributes:
        chance: As above.
        run_dir: The run directory.
        generations: Number of generations; known at the end.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.run_dir = Path()
        self.generations = 0
        self._error: Exception | None = None
        self._over = False
        self._controls = Controls()

    def run(self, workload: str, **keys: object) -> None:
        """Train until the run has recovered.

        Args:
            workload: Name of the workload.
            keys: Job keys that override those of all runs.

        Raises:
            HoldfastError: The run ended before it recovered.
        """
        job = load.check({**job_keys(workload, WORKERS, steps=10_000), **keys}, where="benchmark")
        with tempfile.TemporaryDirectory() as folder:
            self.run_dir = Path(folder) / "run"
            with RunDirectory(self.run_dir, job, resume=False) as directory:
                thread = threading.Thread(target=self._watch)
                thread.start()
                try:
                    run(directory, LaunchOptions(controls=self._controls))
                finally:
                    self._over = True
                    thread.join()
            if self._error is not None:
                raise self._error
            self.generations = len(self.events("generation-started"))

    def inject(self, arena: Arena) -> None:
        """Inject the fault, and return once the run has recovered."""
        raise NotImplementedError

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name so far."""
        entries = json_lines.read(self.run_dir / EVENTS)
        return [event for event in entries if event["event"] == name]

    def pid_of(self, rank: int) -> int:
        """The first process of a rank."""
        started = self.events("worker-started")
        return int(next(event["pid"] for event in started if event["rank"] == rank))

    def step_seconds(self) -> list[float]:
        """Seconds of each step after the first, which has no duration."""
        entries = json_lines.read(self.run_dir / METRICS)
        return [line["seconds"] for line in entries if line["step"] > 1]

    def wait(self, happened: Callable[[], bool], timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Poll every millisecond until `happened()`.

        Raises:
            HoldfastError: It did not happen in time.
        """
        deadline = time.monotonic() + timeout_s
        while not happened():
            if self._over or time.monotonic() > deadline:
                raise HoldfastError(f"the expected event did not happen within {timeout_s:.0f} s")
            time.sleep(POLL_INTERVAL_S)

    def wait_for_work(self, arena: Arena, rank: int, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Poll every millisecond until a rank computes a step.

        Raises:
            HoldfastError: It did not in time.
        """
        self.wait(lambda: Phase(arena[rank, Word.PHASE]) in AT_WORK, timeout_s)

    def _find_arena(self) -> Arena:
        """The arena of the run's first agent: events are too slow to measure milliseconds."""
        self.wait(lambda: bool(self.events("agent-started")))
        pid = self.events("agent-started")[0]["pid"]
        found = list[int | None]()

        def is_open() -> bool:  # not while the process executes its program
            found.append(open_arena(pid))
            return found[-1] is not None

        self.wait(is_open, AGENT_TIMEOUT_S)
        fd = found[-1]
        assert fd is not None
        arena = Arena(fd)
        arena.close()  # the mapping stays
        return arena

    def _watch(self) -> None:
        try:
            arena = self._find_arena()
            self.wait(lambda: min_committed(arena) >= FAULT_STEP)
            time.sleep(self.chance.random() * statistics.median(self.step_seconds()))
            self.inject(arena)
        except Exception as error:  # noqa: BLE001  # raised again where the run was started
            self._error = error
        finally:
            self._controls.stop = True


def min_committed(arena: Arena) -> int:
    """Steps that all workers have committed."""
    return min(arena[rank, Word.COMMITTED] for rank in range(WORKERS))


def max_committed(arena: Arena) -> int:
    """Steps that some worker has committed."""
    return max(arena[rank, Word.COMMITTED] for rank in range(WORKERS))
