"""The other ends of the fork server: its owner's, and that of an agent for which it forks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from holdfast.agent.spawn import Spawned
from holdfast.errors import HoldfastError
from holdfast.wire.channel import Channel
from holdfast.wire.messages import AnyMessage, Attach, Fork, Forked, Prepare, Ready, Vacated

START_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 300.0
"""Longer than all that its owner lets it do before."""
FORK_TIMEOUT_S: Final = 30.0
VACATE_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0
DIED: Final = "the fork server died; see fork-server.log in the run's logs"


def _never() -> bool:
    return False


class ForkServer:
    """A fork server, for its owner; ends with the `with` block.

    Args:
        spawned: Its process.
    """

    def __init__(self, spawned: Spawned) -> None:
        self._process, self._output = spawned.process, spawned.output
        self._ready = False
        self._inbox = _Inbox(Channel(spawned.socket))

    def prepare(self, imports: Sequence[str], given_up: Callable[[], bool] = _never) -> None:
        """Have it import beforehand what its forks will need, where that is safe.

        Args:
            imports: References; see `tasks.reference`.
            given_up: Whether nobody wants it any more.

        Raises:
            HoldfastError: It did not come up, or was given up.
        """
        if not self._ready:
            self._await(Ready, START_TIMEOUT_S, "importing torch", given_up)
            self._ready = True
        if imports:
            doing = f"importing {', '.join(imports)}"
            self._inbox.send(Prepare(imports=tuple(imports)))
            self._await(Ready, START_TIMEOUT_S, doing, given_up)

    def attach(self, agent: socket.socket) -> None:
        """Have it fork for the agent that holds the other end of `agent`.

        Raises:
            HoldfastError: The fork server is gone.
        """
        self._inbox.send(Attach(), [agent.fileno()])

    def await_vacated(self) -> None:
        """Wait until the workers of an agent that has left are gone.

        Raises:
            HoldfastError: The fork server is gone, and all workers with it.
        """
        self._await(Vacated, VACATE_TIMEOUT_S, "ending workers", _never)

    def gone_within(self, timeout_s: float) -> bool:
        """Whether it is gone, or will be within that time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and with it every worker that still runs."""
        self._inbox.channel.close()
        if not self._ready:  # it is importing, and would not notice for a while
            self._process.kill()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def output(self) -> bytes:
        """What it has printed; once, after the end."""
        with os.fdopen(self._output, "rb") as file:
            file.seek(0)
            return file.read()

    def _await(
        self, kind: type, timeout_s: float, doing: str, given_up: Callable[[], bool]
    ) -> None:
        try:
            found = self._inbox.wait(kind, timeout_s, given_up)
        except HoldfastError:
            self._process.kill()
            raise
        if found is None:
            self._process.kill()
            why = (
                "the run was aborted while the fork server was"
                if given_up()
                else (f"the fork server was ended after {timeout_s:.0f} s of")
            )
            raise HoldfastError(f"{why} {doing}; see fork-server.log in the run's logs")


class Forks:
    """A fork server, for an agent.

    Args:
        channel: To it.

    Attributes:
        channel: The same.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._inbox = _Inbox(channel)

    def await_ready(self) -> None:
        """Wait until it can fork.

        Raises:
            HoldfastError: The fork server is gone.
        """
        self._await(Ready, READY_TIMEOUT_S, "getting ready")

    def fork(self, rank: int, config: str, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Fork a worker; returns its process id and a pidfd, which is the caller's to close.

        Args:
            rank: Its rank.
            config: Passed to the entry.
            fds: The arena, the worker's socket, its log; copies go to the worker.

        Raises:
            HoldfastError: The fork server is gone.
        """
        self._inbox.send(Fork(rank=rank, config=config), fds)
        forked = self._await(Forked, FORK_TIMEOUT_S, f"forking rank {rank}")
        assert isinstance(forked, Forked)
        return forked.pid, self.channel.take_fds(1)[0]

    def messages(self) -> list[AnyMessage]:
        """What it has to say that has not been read; does not wait.

        Raises:
            HoldfastError: The fork server is gone.
        """
        return self._inbox.take()

    def _await(self, kind: type, timeout_s: float, doing: str) -> AnyMessage:
        found = self._inbox.wait(kind, timeout_s, _never)
        if found is None:
            raise HoldfastError(f"the fork server was {doing} for more than {timeout_s:.0f} s")
        return found


class _Inbox:
    """A channel of which one message can be waited for while others are kept."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._kept: list[AnyMessage] = []

    def send(self, message: AnyMessage, fds: Sequence[int] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except ConnectionError:
            raise HoldfastError(DIED) from None

    def take(self) -> list[AnyMessage]:
        """All that has come and was not waited for."""
        found = self._kept + self.channel.poll(0)
        self._kept = []
        if self.channel.at_end:
            raise HoldfastError(DIED)
        return found

    def wait(self, kind: type, timeout_s: float, given_up: Callable[[], bool]) -> AnyMessage | None:
        """The next message of a kind; None if it was given up or did not come in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not given_up():
            for message in self._kept:
                if isinstance(message, kind):
                    self._kept.remove(message)
                    return message
            if self.channel.at_end:
                raise HoldfastError(DIED)
            self._kept += self.channel.poll(0.1)
        return None
