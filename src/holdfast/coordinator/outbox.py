"""Outbox: what the coordinator sends to one client, of which only the newest counts."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from holdfast.wire.messages import Message

Sent = TypeVar("Sent", bound=Message)


class Outbox(Generic[Sent]):
    """The newest message that was not yet sent to a client.

    Attributes:
        refusal: Reason for which the client is refused, once it is.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._newest: Sent | None = None
        self._over = False
        self._ready = asyncio.Event()

    def put(self, message: Sent) -> None:
        """Send a message, in place of one that was not sent yet."""
        self._newest = message
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
        return None if self._over else self._newest
