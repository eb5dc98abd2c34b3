"""A run of a workload that is struck once, at a random moment of a step, and what is seen then."""

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
from holdfast.bench.workloads import WORKLOADS
from holdfast.engines.run import run
from holdfast.engines.supervisor import Controls
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.observe import lines
from holdfast.observe.run_dir import EVENTS, METRICS, RunDirectory

WORKERS: Final = 2
FAULT_STEP: Final = 25
POLL_INTERVAL_S: Final = 0.001
RUN_TIMEOUT_S: Final = 300.0
AT_WORK: Final = (Phase.DATA, Phase.COMPUTE, Phase.REDUCE, Phase.UPDATE)


class FaultedRun:
    """Trains, waits for the fault's step, strikes, looks, and has the run stop then.

    Args:
        chance: Draws the moment.

    Attributes:
        chance: The same.
        run_dir: Where the run leaves its events.
        generations: How many there were; known at the end.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.run_dir = chance, Path()
        self.generations = 0
        self._error: Exception | None = None
        self._over = False
        self._controls = Controls()

    def run(self, workload: str, **keys: object) -> None:
        """Train until it is overcome.

        Args:
            workload: What to train.
            keys: Of the job, over those that all have.

        Raises:
            HoldfastError: The run ended before that.
        """
        job = load.check(
            {
                "name": workload,
                "task": "holdfast.bench.workloads:BenchTask",
                "params": {"workload": workload, "steps": 10_000},
                "batch": WORKLOADS[workload].batch_size * WORKERS,
                "workers": WORKERS,
                "shards": WORKERS,
                "checkpoint": {"every_steps": 0},
                **keys,
            },
            where="strike",
        )
        with tempfile.TemporaryDirectory() as folder:
            self.run_dir = Path(folder) / "run"
            with RunDirectory(self.run_dir, job, resume=False) as directory:
                thread = threading.Thread(target=self._watch)
                thread.start()
                try:
                    run(directory, controls=self._controls)
                finally:
                    self._over = True
                    thread.join()
            if self._error is not None:
                raise self._error
            self.generations = len(self.events("generation-started"))

    def strike(self, arena: Arena) -> None:
        """Strike, and look until it is overcome."""
        raise NotImplementedError

    def events(self, name: str) -> list[dict[str, Any]]:
        """Those of a name that there have been."""
        found = lines.read(self.run_dir / EVENTS)
        return [event for event in found if event["event"] == name]

    def pid_of(self, rank: int) -> int:
        """The process of a rank, until it is struck."""
        started = self.events("worker-started")
        return int(next(event["pid"] for event in started if event["rank"] == rank))

    def step_seconds(self, after: int = 1) -> list[float]:
        """What each step took, from the one after `after`; the first had none before it."""
        found = lines.read(self.run_dir / METRICS)
        return [line["seconds"] for line in found if line["step"] > after]

    def wait(self, happened: Callable[[], bool], timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Look every millisecond whether something has happened.

        Raises:
            HoldfastError: It did not.
        """
        deadline = time.monotonic() + timeout_s
        while not happened():
            if self._over or time.monotonic() > deadline:
                raise HoldfastError("what was waited for did not happen")
            time.sleep(POLL_INTERVAL_S)

    def wait_for_work(self, arena: Arena, rank: int, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Look every millisecond whether a rank is at a step.

        Raises:
            HoldfastError: It did not come to one.
        """
        self.wait(lambda: Phase(arena[rank, Word.PHASE]) in AT_WORK, timeout_s)

    def _find_arena(self) -> Arena:
        """The arena of the run's first agent, for the times are measured in milliseconds."""
        self.wait(lambda: bool(self.events("agent-started")))
        fd = open_arena(self.events("agent-started")[0]["pid"])
        if fd is None:
            raise HoldfastError("the agent ended before its workers were started")
        arena = Arena(fd)
        arena.close()  # the mapping stays
        return arena

    def _watch(self) -> None:
        try:
            arena = self._find_arena()
            self.wait(lambda: least(arena) >= FAULT_STEP)
            time.sleep(self.chance.random() * statistics.median(self.step_seconds()))
            self.strike(arena)
        except Exception as error:  # noqa: BLE001  # raised again where the run was started
            self._error = error
        finally:
            self._controls.stop = True


def least(arena: Arena) -> int:
    """Steps that all workers have committed."""
    return min(arena[rank, Word.COMMITTED] for rank in range(WORKERS))


def furthest(arena: Arena) -> int:
    """Steps that some worker has committed."""
    return max(arena[rank, Word.COMMITTED] for rank in range(WORKERS))
