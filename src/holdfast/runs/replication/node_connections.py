"""Connections of a node: it accepts those of others, and makes one to each that it sends something.

A connection carries messages one way, over TLS with the certificates of agents. A message is lost
if there is no connection; consensus sends it again.

Sending. Each other node has a queue and a task, which connects when there is a message and no
connection. If that fails, all that waits is lost. If the host refuses the connection, its node has
ended, and consensus is told. A node that reads slowly loses messages once its queue is full, and no
other one waits for it.

Receiving. A connection that shows no certificate of an agent of this run is closed, and so is one
on which nothing comes for long: its other end makes a new one for its next message.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

from holdfast.wire.node_messages import MAX_LINE_BYTES, Envelope
from holdfast.wire.tls import Credentials, Identity, Role

CONNECT_TIMEOUT_S: Final = 1.0
"""Time until the other end has accepted a connection and shown its certificate."""
UNSENT_TIMEOUT_MS: Final = 2000
"""Time after which a connection on which nothing arrives is given up (TCP_USER_TIMEOUT)."""
IDLE_TIMEOUT_S: Final = 60.0
"""Time after which a connection is closed on which nothing comes: its other end may be gone."""
MAX_UNSENT: Final = 64
"""Messages to a node that wait; more are lost."""
MAX_UNSENT_BYTES: Final = 8 << 20

OnMessage = Callable[[Envelope], None]
OnEnded = Callable[[str], None]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Connections:
    """The connections of one node, in the running event loop.

    Args:
        listener: Socket on which it accepts connections.
        credentials: The agent's.
        on_message: Called with each message that has come.
        on_ended: Called with the name of a node whose process has ended: its host is there, and
            refuses connections.
        spawn: Begins a task. Its error is a bug, and the caller's to report.
    """

    def __init__(
        self,
        listener: socket.socket,
        credentials: Credentials,
        on_message: OnMessage,
        on_ended: OnEnded,
        spawn: Spawn,
    ) -> None:
        self._listener = listener
        self._accepting = credentials.server_context()
        self._connecting = credentials.client_context()
        self._on_message = on_message
        self._on_ended = on_ended
        self._spawn = spawn
        self._outgoing: dict[str, _Outgoing] = {}
        self._server: asyncio.Server | None = None
        self._accepted: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Accept connections from now on."""
        self._server = await asyncio.start_server(
            self._accept,
            sock=self._listener,
            ssl=self._accepting,
            ssl_handshake_timeout=CONNECT_TIMEOUT_S,
            limit=MAX_LINE_BYTES,
        )

    def send(self, node: str, message: Envelope) -> None:
        """Send a message to a node, or lose it."""
        if node not in self._outgoing:
            self._outgoing[node] = _Outgoing(node, self._connecting, self._on_ended, self._spawn)
        self._outgoing[node].send(message.line)

    def keep(self, nodes: Iterable[str]) -> None:
        """Close connections to all other nodes."""
        for node in self._outgoing.keys() - set(nodes):
            self._outgoing.pop(node).close()

    def close(self) -> None:
        """Accept no more, and send nothing more."""
        self.keep(())
        if self._server is not None:
            self._server.close()
        self._listener.close()
        for writer in self._accepted:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio would log that its task was cancelled.
        self._accepted.add(writer)
        self._spawn(self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the messages of one connection until it ends."""
        try:
            identity = Identity.of_peer(writer.get_extra_info("peercert"))
            while identity is not None and identity.role == Role.AGENT:
                message = await _next_message(reader)
                if message is None:
                    return
                self._on_message(message)
        finally:
            self._accepted.discard(writer)
            writer.transport.abort()


async def _next_message(reader: asyncio.StreamReader) -> Envelope | None:
    """The next message; None if the other end has ended, or sends something else."""
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            line = await reader.readline()
        return Envelope.model_validate_json(line) if line else None
    except (OSError, ValueError):
        return None


class _Outgoing:
    """The messages to one node."""

    def __init__(self, node: str, context: ssl.SSLContext, on_ended: OnEnded, spawn: Spawn) -> None:
        self._node = node
        self._context = context
        self._on_ended = on_ended
        self._lines = asyncio.Queue[bytes](MAX_UNSENT)
        self._ending: asyncio.Task[None] | None = None
        self._spawn = spawn
        self._task = spawn(self._work())

    def send(self, line: bytes) -> None:
        with suppress(asyncio.QueueFull):
            self._lines.put_nowait(line)

    def close(self) -> None:
        self._task.cancel()

    async def _work(self) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            while True:
                line = await self._lines.get()
                try:
                    if writer is None or writer.is_closing():
                        writer = await self._connect()
                    if writer.transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
                        writer.write(line)
                except ConnectionRefusedError:
                    # The host answers, and nothing listens there: the process of the node has
                    # ended, and none comes back under its name.
                    self._drop()
                    self._on_ended(self._node)
                except (OSError, ValueError):  # also the name of a node that is none
                    self._drop()
        finally:
            if self._ending is not None:
                self._ending.cancel()
            if writer is not None:
                writer.transport.abort()

    def _drop(self) -> None:
        """Lose what waits: the next messages say the same, or newer things."""
        while not self._lines.empty():
            self._lines.get_nowait()

    async def _connect(self) -> asyncio.StreamWriter:
        host, port = endpoint_of(self._node)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._context)
        identity = Identity.of_peer(writer.get_extra_info("peercert"))
        if identity is None or identity.role != Role.AGENT:
            writer.transport.abort()
            raise OSError(f"{self._node} has no certificate of an agent")
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_TIMEOUT_MS)
        self._ending = self._spawn(_close_at_end(reader, writer))
        return writer


async def _close_at_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a connection once its other end is closed, so that the next message makes a new one."""
    with suppress(OSError):
        await reader.read(1)  # nothing comes
    writer.transport.abort()


def endpoint_of(node: str) -> tuple[str, int]:
    """Address and port in the name of a node."""
    host, _, port = node.rpartition("@")[2].rpartition(":")
    return host.strip("[]"), int(port)
