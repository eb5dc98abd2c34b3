"""Target: a run into which faults are injected, seen from outside.

Its processes are known from its events, and its progress from the arena of its agent, to the very
step. So faults can be injected whichever process started the run.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
from pathlib import Path
from typing import Any, Final

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.find import open_arena
from holdfast.arena.memory import Arena, Word
from holdfast.errors import JobError
from holdfast.linux.process import Process
from holdfast.rundir.follow import Cursor, JsonTail, end_of
from holdfast.rundir.run_directory import EVENTS, is_held

COORDINATOR: Final = "coordinator"
AGENT: Final = "agent"
_ANOTHERS: Final = "the run is another user's; only its owner can inject faults"


class Target:
    """One run.

    Args:
        run_dir: The run's directory.
        whole: True if events that are logged already belong to the run; if not, it starts later.

    Attributes:
        run_dir: The same.
        arena: The shared memory of the newest agent; None before there is one.
        has_begun: True if a generation has started.
        first_step: Steps committed when it started, or when the run was found.
        over: True if the run has ended.
    """

    def __init__(self, run_dir: Path, *, whole: bool = False) -> None:
        self.run_dir = run_dir
        self.arena: Arena | None = None
        self.has_begun = self.over = False
        self.first_step = 0
        events = run_dir / EVENTS
        self._news = JsonTail(events, Cursor() if whole else end_of(events))
        self._processes: dict[str | int, Process] = {}  # by rank or name

    @classmethod
    def under_way(cls, run_dir: Path) -> Target:
        """The run that is in progress in a directory.

        Raises:
            JobError: There is none, or it is another user's.
        """
        try:
            target = cls(run_dir, whole=True)
            target.look()
        except PermissionError:
            raise JobError(_ANOTHERS) from None
        target.first_step = target.reached
        if target.arena is None or target.over:
            raise JobError(
                f"no run is in progress in {run_dir}; name the directory of one that is, "
                "or a job to run"
            )
        return target

    def look(self) -> None:
        """Take note of what has happened since the last look.

        Raises:
            JobError: Another process injects faults into this run, or it is another user's.
        """
        for event in self._news():
            self._note(event)
        if not is_held(self.run_dir):
            self.over = True  # however its command has ended
        elif self.arena is None and AGENT in self._processes:
            self._find_arena(self._processes[AGENT])

    @property
    def reached(self) -> int:
        """The most steps that a worker has committed."""
        return max(self._words(Word.COMMITTED))

    @property
    def total_steps(self) -> int:
        """Steps of the run; 0 before any worker trains, and for a stream of unknown length."""
        return max(self._words(Word.TOTAL_STEPS))

    @property
    def trains(self) -> bool:
        """True if a worker has begun its loop over shards."""
        return max(self._words(Word.TOTAL_STEPS)) > 0 or max(self._words(Word.EPOCHS)) > 0

    def has(self, who: str | int) -> bool:
        """True if the coordinator, the agent or a rank is alive."""
        return who in self._processes and self._processes[who].is_alive

    def send(self, number: signal.Signals, who: str | int) -> None:
        """Send a signal to one of them, if it is alive; then wait for its replacement."""
        process = self._processes.pop(who, None)
        if process is not None:
            process.send(number)

    def _words(self, word: Word) -> list[int]:
        if self.arena is None:
            return [0]
        return [self.arena[rank, word] for rank in range(self.arena.world_size)]

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "run-started":
                self._processes = {}
                self.arena = None
                self.has_begun = self.over = False
            case "coordinator-started":
                self._meet(COORDINATOR, event)
            case "agent-started":  # the workers of the one before have ended with it
                for who in [who for who in self._processes if who != COORDINATOR]:
                    del self._processes[who]
                self._meet(AGENT, event)
                self.arena = None
            case "worker-started":
                self._meet(event["rank"], event)
            case "worker-exited":
                known = self._processes.get(event["rank"])
                if known is not None and known.pid == event["pid"]:
                    del self._processes[event["rank"]]
            case "generation-started":
                self.first_step = self.first_step if self.has_begun else event["step"]
                self.has_begun = True
            case "run-ended" | "run-failed":
                self.over = True

    def _meet(self, who: str | int, event: dict[str, Any]) -> None:
        """Note the process of an event, in place of the one before."""
        self._processes.pop(who, None)
        process = Process.logged(event["pid"], event["time_unix_s"])
        if process is not None:
            self._processes[who] = process

    def _find_arena(self, agent: Process) -> None:
        try:
            fd = open_arena(agent.pid)
        except PermissionError:
            raise JobError(_ANOTHERS) from None
        if fd is not None:
            self.arena = _locked(fd)


def _locked(fd: int) -> Arena:
    """The arena of a descriptor, for this injector alone: the lock lasts as long as the mapping.

    Requests of an injector that was killed are withdrawn.

    Raises:
        JobError: Another injector has it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        arena = Arena(fd)
    except BlockingIOError:
        raise JobError("another process injects faults into this run; wait for its end") from None
    finally:
        os.close(fd)
    for rank, injection in itertools.product(range(arena.world_size), InProcessFault):
        FaultRequests(arena, rank).withdraw(injection)
    return arena
