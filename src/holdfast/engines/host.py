"""Host: an agent on this machine, the arena that it works with, and its workers."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from holdfast.agent.forks import ForkServer
from holdfast.arena.memory import Arena
from holdfast.engines.child import Child
from holdfast.observe.run_dir import RunDirectory


class Host:
    """One agent's. It has no workers before it is attached.

    Args:
        name: Of the agent; never used before in this run.
        attempt: This start of the run.
        workers: How many it can have.
        directory: The run's.
        address: Of the coordinator.
    """

    def __init__(
        self, name: str, attempt: str, workers: int, directory: RunDirectory, address: str
    ) -> None:
        self.name = name
        self._forks: ForkServer | None = None
        with ExitStack() as undo:
            self.arena = Arena.create(workers)
            undo.callback(self.arena.close)
            self._socket, far = socket.socketpair()
            undo.callback(self._socket.close)
            with far:
                self.agent = Child(
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
            undo.pop_all()

    def attach(self, forks: ForkServer) -> None:
        """Let it have workers.

        Raises:
            HoldfastError: The fork server is gone.
        """
        forks.attach(self._socket)
        self._socket.close()
        self._forks = forks

    def close(self) -> None:
        """End the agent; returns when none of its workers is left."""
        self.agent.close()
        self._socket.close()
        if self._forks is not None and not self._forks.gone_within(0):
            self._forks.await_vacated()
        self.arena.close()
