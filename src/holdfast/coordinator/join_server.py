"""Join server: where hosts that want to take part in a run ask for it; see `wire.join`.

Everyone can reach it, so each connection gets little of everything: one message of a few kilobytes,
a few seconds, and its place among a few only until a newer one needs it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from pydantic import ValidationError

from holdfast.coordinator.refusals import Refusals, Refused
from holdfast.wire.join import MAX_LINE_BYTES, JoinedMessage, JoinMessage, RefusedMessage
from holdfast.wire.tls import Identity

if TYPE_CHECKING:
    from holdfast.coordinator.authority import Authority

MAX_CONNECTIONS: Final = 64
"""Most connections. The oldest is closed then: one that is slow on purpose keeps no one out."""
TIMEOUT_S: Final = 5.0
"""Time that a connection may last."""
RETRY_S: Final = 0.1
"""Wait when the system has no descriptors left."""

Admit = Callable[[JoinMessage, Identity | None, str], JoinedMessage]
"""Lets a host take part, given its request, its earlier identity and its address.

Raises:
    Refused: It may not.
    HoldfastError: The run must end.
"""


class JoinServer:
    """Serves one run, within its context.

    Args:
        address: Address at which it listens, with the port.
        authority: Authority of the run.
        admit: Answers a request.
        refusals: Counts those that are refused.

    Raises:
        OSError: It cannot listen.
    """

    def __init__(
        self, address: str, authority: Authority, admit: Admit, refusals: Refusals
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_server(
            (host.strip("[]"), int(port)),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        )
        self._socket.setblocking(False)
        self._serving: asyncio.Task[None] | None = None
        self._context = authority.coordinator.server_context(strangers=True)
        self._admit = admit
        self._refusals = refusals
        self._connections: dict[asyncio.Task[None], str] = {}  # oldest first

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._serving is not None
        for task in (self._serving, *self._connections):
            task.cancel()
        self._socket.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError:
                await asyncio.sleep(RETRY_S)
            else:
                self._begin(connection, str(address[0]))

    def _begin(self, connection: socket.socket, address: str) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._refusals.add(self._connections.pop(oldest), "too many connections at once")
            oldest.cancel()
        task = asyncio.create_task(self._serve_one(connection, address))
        self._connections[task] = address
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve_one(self, connection: socket.socket, address: str) -> None:
        with connection:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._answer(connection, address)
            except TimeoutError:
                self._refusals.add(address, "no request in time")
            except ssl.SSLError as error:
                self._refusals.add(address, f"no TLS of this run: {error.reason}")
            except OSError:
                self._refusals.add(address, "a connection that broke")

    async def _answer(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=TIMEOUT_S,
            ssl_shutdown_timeout=TIMEOUT_S,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        # A stranger has no certificate. One that is shown was verified, and names who joins again.
        try:
            identity = Identity.of_peer(transport.get_extra_info("peercert"))
            answer = await self._answer_to(reader, identity, address)
            writer.write(answer.model_dump_json().encode() + b"\n")
            writer.close()
            with suppress(OSError):  # the host has its answer, and hangs up
                await writer.wait_closed()
        finally:
            transport.abort()

    async def _answer_to(
        self, reader: asyncio.StreamReader, identity: Identity | None, address: str
    ) -> JoinedMessage | RefusedMessage:
        try:
            request = await _read(reader)
            return self._admit(request, identity, address)
        except Refused as refused:
            if not refused.is_over:
                self._refusals.add(address, refused.reason)
            return RefusedMessage(reason=str(refused), is_over=refused.is_over)


async def _read(reader: asyncio.StreamReader) -> JoinMessage:
    advice = "use the same version of holdfast on all hosts"
    try:
        return JoinMessage.model_validate_json(await reader.readline())
    except ValidationError:
        raise Refused("no valid request", advice) from None
    except ValueError:
        raise Refused("a message that is too long", advice) from None
