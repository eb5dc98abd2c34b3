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
            self._owned = undo.pop_all()
            self._owned.callback(self.agent.close)

    def attach(self, forks: ForkServer) -> None:
        """Let it have workers.

        Raises:
            HoldfastError: The fork server is gone.
        """
        forks.attach(self._socket)
        self._socket.close()
        self._owned.callback(_await_vacated, forks)
        self._owned.callback(self.agent.close)  # before that

    def close(self) -> None:
        """End the agent; returns when none of its workers is left."""
        self._owned.close()


def _await_vacated(forks: ForkServer) -> None:
    if not forks.gone_within(0):
        forks.await_vacated()
