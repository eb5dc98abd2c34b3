"""Outboxes: what the coordinator sends to agents and commands, of which only the newest counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.protocol import WorkerProgress
from holdfast.wire.messages import Message
from holdfast.wire.rpc import RunStateMessage

Sent = TypeVar("Sent", bound=Message)


class Outbox(Generic[Sent]):
    """The newest message that was not yet sent to a client.

    Attributes:
        refusal: Reason for which the client is refused, once it is.
        newest: The newest message; None before the first.
        put_at: When it was put here, seconds of the event loop.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.newest: Sent | None = None
        self.put_at = 0.0
        self._over = False
        self._ready = asyncio.Event()

    def put(self, message: Sent) -> None:
        """Send a message, in place of one that was not sent yet."""
        self.newest = message
        self.put_at = asyncio.get_running_loop().time()
        self._ready.set()

    def refuse(self, reason: str) -> None:
        """End the client's stream with an error."""
        self.refusal = reason
        self.close()

    def close(self) -> None:
        """End the client's stream."""
        self._over = True
        self._ready.set()

    async def get(self) -> Sent | None:
        """The next message; None at the end."""
        await self._ready.wait()
        self._ready.clear()
        return None if self._over else self.newest


PROGRESS_INTERVAL_S: Final = 0.1
"""Least time between two messages to a command in which only the progress has changed."""


class Watchers:
    """The outboxes of all commands.

    Args:
        machine: The coordinator's machine.
        state: Returns the state of the run, without the progress.

    Attributes:
        progress: Progress of the workers of each host, as last reported.
    """

    def __init__(
        self, machine: CoordinatorStateMachine, state: Callable[[], RunStateMessage]
    ) -> None:
        self.progress: dict[str, Mapping[int, WorkerProgress]] = {}
        self._machine = machine
        self._state = state
        self._outboxes: list[Outbox[RunStateMessage]] = []
        self._shown: RunStateMessage | None = None
        self._show_at = 0.0

    def add(self) -> Outbox[RunStateMessage]:
        """The outbox of a new command, with the current state in it."""
        outbox = Outbox[RunStateMessage]()
        outbox.put(self._state())
        self._outboxes.append(outbox)
        return outbox

    def remove(self, outbox: Outbox[RunStateMessage]) -> None:
        """Send nothing more to a command."""
        self._outboxes.remove(outbox)

    def show(self) -> None:
        """Send all commands the state if it has changed, and the progress at intervals."""
        # Called after each event, of which most change nothing that a command shows.
        state = self._state()
        now = asyncio.get_running_loop().time()
        is_due = self._machine.watched and now >= self._show_at
        if state == self._shown and not is_due:
            return
        self._shown = state
        self._show_at = now + PROGRESS_INTERVAL_S
        for outbox in self._outboxes:
            outbox.put(state)

    def with_progress(self, state: RunStateMessage) -> RunStateMessage:
        """The state with the newest progress, which is added when it is sent."""
        progress = {
            rank: self.progress[host][rank]
            for rank, host in self._machine.members.items()
            if rank in self.progress.get(host, {})
        }
        return state.model_copy(update={"progress": progress})
