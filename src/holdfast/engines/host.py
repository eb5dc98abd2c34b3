"""Host: an agent on this machine, the arena that it works with, and its workers."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from holdfast.arena.memory import Arena
from holdfast.launch.child import Child
from holdfast.launch.fork_client import ForkServer
from holdfast.observe.run_dir import RunDirectory


class Host:
    """One agent's. It has no workers before it is attached.

    Args:
        name: Of the agent; never used before in this run.
        attempt: This start of the run.
        workers: How many it can have.
        directory: The run's.
        address: Of the coordinator.

    Attributes:
        name: The same.
        arena: Its shared memory.
        agent: Its process.
        attached: Whether it has been.
    """

    def __init__(
        self, name: str, attempt: str, workers: int, directory: RunDirectory, address: str
    ) -> None:
        self.name, self.attached = name, False
        with ExitStack() as undo:
            self.arena = Arena.create(workers)
            undo.callback(self.arena.close)
            self._socket, far = socket.socketpair()
            undo.callback(self._socket.close)
            with far:
                self.agent = Child.start(
                    "holdfast.agent.main",
                    {
                        "name": name,
                        "run-dir": directory.path,
                        "attempt": attempt,
                        "address": address,
                        "arena": self.arena.fd,
                        "forks": far.fileno(),
                    },
                    directory.logs / "agent.log",
                    fds=[self.arena.fd, far.fileno()],
                )
            self._owned = undo.pop_all()
            self._owned.callback(self.agent.close)

    def attach(self, forks: ForkServer) -> None:
        """Let it have workers."""
        forks.attach(self._socket)
        self._socket.close()
        self.attached = True
        self._owned.callback(forks.await_vacated)
        self._owned.callback(self.agent.close)  # before that

    @property
    def is_at_work(self) -> bool:
        """Whether it can have workers, and hears of the end of the run."""
        return self.attached and self.agent.status is None

    def close(self) -> None:
        """End the agent; returns when none of its workers is left."""
        self._owned.close()
