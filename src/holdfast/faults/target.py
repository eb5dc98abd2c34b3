"""Target: a run that is struck, seen from outside: who is alive, and how far it has come.

Who belongs to it is told by its events, and how far it is by its arena, which is found among what
its agent has open. So it does not matter which process has started the run.
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
from holdfast.observe.lines import Tail
from holdfast.observe.run_dir import EVENTS, is_held

COORDINATOR: Final = "coordinator"
AGENT: Final = "agent"
_ANOTHERS: Final = "the run is another user's; only its owner can strike it"


class Target:
    """One run.

    Args:
        run_dir: Its directory.
        whole: Whether what its log holds already is about it; if not, it is the one that comes.

    Attributes:
        run_dir: The same.
        arena: The shared memory of its newest agent; None before it has one.
        released: Whether workers have been let go.
        first_step: How many steps were committed when they were, or when it was found under way.
        over: Whether it has ended.
    """

    def __init__(self, run_dir: Path, *, whole: bool = False) -> None:
        self.run_dir = run_dir
        self.arena: Arena | None = None
        self.released = self.over = False
        self.first_step = 0
        self._news = Tail(run_dir / EVENTS, whole=whole)
        self._processes: dict[str | int, Process] = {}  # by rank, and the two that have none

    @classmethod
    def under_way(cls, run_dir: Path) -> Target:
        """The run in a directory.

        Raises:
            JobError: There is none under way, or it is somebody else's.
        """
        try:
            target = cls(run_dir, whole=True)
            target.look()
        except PermissionError:
            raise JobError(_ANOTHERS) from None
        target.first_step = target.reached
        if target.arena is None or target.over:
            raise JobError(
                f"no run is under way in {run_dir}; name the directory of one that is, "
                "or a job to run"
            )
        return target

    def look(self) -> None:
        """Take note of what has happened since the last look.

        Raises:
            JobError: Another storm strikes this run, or it is somebody else's.
        """
        for event in self._news():
            self._note(event)
        if not is_held(self.run_dir):
            self.over = True  # however its command has ended; nothing of it is to be struck
        elif self.arena is None and AGENT in self._processes:
            self._find_arena(self._processes[AGENT])

    @property
    def reached(self) -> int:
        """The most steps that a worker has committed."""
        return max(self._words(Word.COMMITTED))

    @property
    def total_steps(self) -> int:
        """Of the run; 0 before any worker trains."""
        return max(self._words(Word.TOTAL_STEPS))

    def has(self, who: str | int) -> bool:
        """Whether the coordinator, the agent or a rank is alive."""
        return who in self._processes and self._processes[who].is_alive

    def send(self, number: signal.Signals, who: str | int) -> None:
        """Send a signal to one of those, if it is there.

        From then on it is as good as gone: what comes next is for its successor.
        """
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
                self._processes, self.arena = {}, None
                self.released = self.over = False
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
                self.first_step = self.first_step if self.released else event["step"]
                self.released = True
            case "run-ended" | "run-failed":
                self.over = True

    def _meet(self, who: str | int, event: dict[str, Any]) -> None:
        """Know the process that an event tells of, in place of the one before."""
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
        raise JobError("another storm strikes this run; wait for its end") from None
    finally:
        os.close(fd)
    for rank, injection in itertools.product(range(arena.world_size), InProcessFault):
        FaultRequests(arena, rank).withdraw(injection)
    return arena
