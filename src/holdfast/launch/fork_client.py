"""Clients of the fork server: of the command that owns it, and of an agent that it forks for."""

from __future__ import annotations

import base64
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from holdfast.errors import HoldfastError
from holdfast.job.settings import Program
from holdfast.launch.child import Child, Process
from holdfast.launch.forked import ControlProcess, LentProcess
from holdfast.launch.spawn import Spawned
from holdfast.wire.channel import Channel
from holdfast.wire.messages import (
    AnyMessage,
    AttachMessage,
    ControlForkedMessage,
    ForkControlMessage,
    ForkedMessage,
    ForkMessage,
    PrepareMessage,
    ReadyMessage,
    WorkersReapedMessage,
)

START_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 3 * START_TIMEOUT_S + 30
"""More than the time limits of starting, restarting with other variables, and importing."""
FORK_TIMEOUT_S: Final = 30.0
REAP_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0
DIED: Final = "the fork server died; see fork-server.log in the run's logs"


class ForkServer:
    """A fork server, as its owner uses it; it ends with the `with` block.

    Args:
        spawned: Its process.
        imports: Modules to import before it forks, where that is safe; see `tasks.reference`.
        program: The program of the job whose modules these are.
        variables: Environment variables that libraries read when they are loaded.
        code: Name and content of a task that comes by value; see `tasks.by_value`.

    Attributes:
        process, program, variables, code: As above.
        doing: Activity before it is ready, in words; empty once it is ready.
    """

    def __init__(
        self,
        spawned: Spawned,
        imports: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        code: tuple[str, bytes] | None = None,
        program: Program | None = None,
    ) -> None:
        self._spawned = spawned
        self.process = Child(spawned.process, Path(f"/proc/self/fd/{spawned.output}"))
        self._output = spawned.output
        self._inbox = _Inbox(Channel(spawned.socket))
        self.variables = dict(variables)
        self.code = code
        self.program = program
        self._prepare = [PrepareMessage(variables=self.variables)] if variables else []
        if imports:
            self._prepare.append(PrepareMessage(imports=tuple(imports), program=program))
        if code is not None:
            text = base64.b64encode(code[1]).decode()
            self._prepare.append(PrepareMessage(code=(code[0], text), program=program))
        self.doing = "importing torch"
        self._deadline = time.monotonic() + START_TIMEOUT_S

    def fileno(self) -> int:
        """A descriptor that `select` finds readable once there is a message or an end."""
        return self._inbox.channel.fileno()

    def is_ready(self) -> bool:
        """True if it can fork; does not wait.

        Raises:
            HoldfastError: It took more than START_TIMEOUT_S for one stage of its start.
        """
        if self.doing and self._inbox.hears(ReadyMessage):
            if self._prepare:
                request = self._prepare.pop(0)
                self.doing = f"importing {', '.join(request.imports) or 'torch'}"
                self._deadline = time.monotonic() + START_TIMEOUT_S
                with suppress(HoldfastError):  # its owner watches the process too
                    self._inbox.send(request)
            else:
                self.doing = ""
        if self.doing and time.monotonic() > self._deadline:
            self.process.kill()
            raise HoldfastError(
                f"the fork server was killed after {START_TIMEOUT_S:.0f} s of {self.doing}; "
                "see fork-server.log in the run's logs"
            )
        return not self.doing

    def fork_control(
        self, process: ControlProcess, output: int, fds: Collection[int]
    ) -> Process | None:
        """Fork a coordinator or an agent; see `launch.child.Forker`.

        It dies with the fork server. While that is not ready, this process is forked if it may be.

        Raises:
            HoldfastError: See `is_ready`.
        """
        if self.process.status is not None or not self.is_ready():
            return self._spawned.fork_control(process, output, fds)
        request = ForkControlMessage(
            module=process.module,
            words=process.words,
            environment=process.environment,
            directory=str(process.directory),
            numbers=tuple(fds),
        )
        near, far = os.pipe()
        try:
            self._inbox.send(request, [output, far, *fds])
            is_stopped = self.process.is_stopped
            forked = self._inbox.wait(ControlForkedMessage, FORK_TIMEOUT_S, is_stopped)
        except HoldfastError:  # it has ended, which its owner notices
            forked = None
        finally:
            os.close(far)
        if forked is None:
            os.close(near)
            self.process.kill()  # before it reads the request
            return None
        assert isinstance(forked, ControlForkedMessage)
        return LentProcess(forked.pid, self._inbox.channel.take_fds(1)[0], near)

    def attach(self, agent: socket.socket) -> None:
        """Let the agent at the other end of `agent` request forks."""
        with suppress(HoldfastError):  # it has ended, which the agent notices by itself
            self._inbox.send(AttachMessage(), [agent.fileno()])

    def await_workers_reaped(self) -> None:
        """Wait until the workers of an agent that has ended are reaped.

        A fork server that has ended or is stopped cannot report that. It is killed, and with it its
        workers.

        Raises:
            HoldfastError: The workers do not end.
        """
        try:
            if self._inbox.wait(WorkersReapedMessage, REAP_TIMEOUT_S, self.process.is_stopped):
                return
        except HoldfastError:
            pass  # it has ended
        else:
            if not self.process.is_stopped():
                raise HoldfastError(
                    f"the workers of a lost agent did not end within {REAP_TIMEOUT_S:.0f} s; a "
                    "disk may hang. Resume the run from its last checkpoint"
                )
        self.process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and every worker that still runs."""
        self._inbox.channel.close()
        # While it imports, it does not read its channel.
        self.process.close(0 if self.doing else END_TIMEOUT_S)

    def output(self) -> bytes:
        """Its output; can be called once, after its end."""
        with os.fdopen(self._output, "rb") as file:
            file.seek(0)
            return file.read()


class ForkClient:
    """A fork server, as an agent uses it.

    Args:
        channel: To the fork server.

    Attributes:
        channel: As above.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._inbox = _Inbox(channel)

    def await_ready(self) -> None:
        """Wait until it can fork.

        Raises:
            HoldfastError: The fork server has ended, or did not answer in time.
        """
        self._await(ReadyMessage, READY_TIMEOUT_S, "getting ready")

    def fork(self, rank: int, config: str, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Fork a worker; returns its process id and a pidfd, which the caller closes.

        Args:
            rank: The rank of the worker.
            config: Passed to the entry.
            fds: The arena, the worker's socket and its log; the worker gets copies.

        Raises:
            HoldfastError: The fork server has ended, or did not answer in time.
        """
        self._inbox.send(ForkMessage(rank=rank, config=config), fds)
        forked = self._await(ForkedMessage, FORK_TIMEOUT_S, f"forking rank {rank}")
        assert isinstance(forked, ForkedMessage)
        return forked.pid, self.channel.take_fds(1)[0]

    def messages(self) -> list[AnyMessage]:
        """All unread messages; does not wait.

        Raises:
            HoldfastError: The fork server has ended, or did not answer in time.
        """
        return self._inbox.take()

    def _await(self, kind: type, timeout_s: float, doing: str) -> AnyMessage:
        message = self._inbox.wait(kind, timeout_s, lambda: False)
        if message is None:
            raise HoldfastError(f"the fork server was {doing} for more than {timeout_s:.0f} s")
        return message


class _Inbox:
    """A channel that can wait for one kind of message and keep the others for later."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._kept: list[AnyMessage] = []

    def send(self, message: AnyMessage, fds: Sequence[int] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except ConnectionError:
            raise HoldfastError(DIED) from None

    def take(self) -> list[AnyMessage]:
        """All messages that have arrived and were not waited for."""
        messages = self._kept + self.channel.poll(0)
        self._kept = []
        if self.channel.at_end:
            raise HoldfastError(DIED)
        return messages

    def hears(self, kind: type) -> AnyMessage | None:
        """The next message of a kind, if it has arrived."""
        self._kept += self.channel.poll(0)
        return self._found(kind)

    def wait(self, kind: type, timeout_s: float, given_up: Callable[[], bool]) -> AnyMessage | None:
        """The next message of a kind; None after `timeout_s`, or once `given_up` returns True."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not given_up():
            if message := self._found(kind):
                return message
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
