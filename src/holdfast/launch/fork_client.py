"""The other ends of the fork server: its owner's, and that of an agent for which it forks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from holdfast.errors import HoldfastError
from holdfast.launch.child import Child
from holdfast.launch.spawn import Spawned
from holdfast.wire.channel import Channel
from holdfast.wire.messages import (
    AnyMessage,
    AttachMessage,
    ForkedMessage,
    ForkMessage,
    PrepareMessage,
    ReadyMessage,
    WorkersReapedMessage,
)

START_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 3 * START_TIMEOUT_S + 30
"""Longer than it may take to start, to start again with other variables, and to import."""
FORK_TIMEOUT_S: Final = 30.0
VACATE_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0
DIED: Final = "the fork server died; see fork-server.log in the run's logs"


class ForkServer:
    """A fork server, for its owner; ends with the `with` block.

    Args:
        spawned: Its process.
        imports: What it is to import beforehand, where that is safe; see `tasks.reference`.
        variables: Environment variables that libraries must have been loaded with.

    Attributes:
        process, variables: The same.
        doing: What it does until it is ready, in words; empty then.
    """

    def __init__(
        self,
        spawned: Spawned,
        imports: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.process = Child(spawned.process, Path(f"/proc/self/fd/{spawned.output}"))
        self._output = spawned.output
        self._inbox = _Inbox(Channel(spawned.socket))
        self.variables = dict(variables)
        self._prepare = [PrepareMessage(variables=self.variables)] if variables else []
        self._prepare += [PrepareMessage(imports=tuple(imports))] if imports else []
        self.doing = "importing torch"
        self._deadline = time.monotonic() + START_TIMEOUT_S

    def fileno(self) -> int:
        """Readable, for `select`, once it says something or has ended."""
        return self._inbox.channel.fileno()

    def is_ready(self) -> bool:
        """Whether it can fork; does not wait.

        Raises:
            HoldfastError: It takes too long to come up.
        """
        if self.doing and self._inbox.hears(ReadyMessage):
            if self._prepare:
                wish = self._prepare.pop(0)
                self.doing = f"importing {', '.join(wish.imports) or 'torch'}"
                self._deadline = time.monotonic() + START_TIMEOUT_S
                with suppress(HoldfastError):  # whoever looks at its process will see
                    self._inbox.send(wish)
            else:
                self.doing = ""
        if self.doing and time.monotonic() > self._deadline:
            self.process.kill()
            raise HoldfastError(
                f"the fork server was ended after {START_TIMEOUT_S:.0f} s of {self.doing}; "
                "see fork-server.log in the run's logs"
            )
        return not self.doing

    def attach(self, agent: socket.socket) -> None:
        """Have it fork for the agent that holds the other end of `agent`, if it is not gone."""
        with suppress(HoldfastError):  # then the agent will see
            self._inbox.send(AttachMessage(), [agent.fileno()])

    def await_vacated(self) -> None:
        """Wait until the workers of an agent that has left are gone.

        A fork server that cannot say so, because it is gone or stopped, is ended, and its workers
        have been sent SIGKILL then.

        Raises:
            HoldfastError: They do not end.
        """
        try:
            if self._inbox.wait(WorkersReapedMessage, VACATE_TIMEOUT_S, self.process.is_stopped):
                return
        except HoldfastError:
            pass  # it is gone
        else:
            if not self.process.is_stopped():
                raise HoldfastError(
                    f"the workers of a lost agent did not end within {VACATE_TIMEOUT_S:.0f} s, as "
                    "if a disk hung; resume the run from its last checkpoint"
                )
        self.process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and with it every worker that still runs."""
        self._inbox.channel.close()
        # While it is importing, it would not notice for a while.
        self.process.close(0 if self.doing else END_TIMEOUT_S)

    def output(self) -> bytes:
        """What it has printed; once, after the end."""
        with os.fdopen(self._output, "rb") as file:
            file.seek(0)
            return file.read()


class ForkClient:
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
        self._await(ReadyMessage, READY_TIMEOUT_S, "getting ready")

    def fork(self, rank: int, config: str, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Fork a worker; returns its process id and a pidfd, which is the caller's to close.

        Args:
            rank: Its rank.
            config: Passed to the entry.
            fds: The arena, the worker's socket, its log; copies go to the worker.

        Raises:
            HoldfastError: The fork server is gone.
        """
        self._inbox.send(ForkMessage(rank=rank, config=config), fds)
        forked = self._await(ForkedMessage, FORK_TIMEOUT_S, f"forking rank {rank}")
        assert isinstance(forked, ForkedMessage)
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


def _never() -> bool:
    return False


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

    def hears(self, kind: type) -> AnyMessage | None:
        """The next message of a kind, if it has come."""
        self._kept += self.channel.poll(0)
        return self._found(kind)

    def wait(self, kind: type, timeout_s: float, given_up: Callable[[], bool]) -> AnyMessage | None:
        """The next message of a kind; None if it was given up or did not come in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not given_up():
            if found := self._found(kind):
                return found
            if self.channel.at_end:
                raise HoldfastError(DIED)
            self._kept += self.channel.poll(0.1)
        return None

    def _found(self, kind: type) -> AnyMessage | None:
        for message in self._kept:
            if isinstance(message, kind):
                self._kept.remove(message)
                return message
        return None
