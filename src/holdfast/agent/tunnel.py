"""Tunnel: carries connections of process groups between hosts, encrypted and authenticated.

gloo encrypts nothing, and acts on offsets that it reads from its sockets
(https://github.com/pytorch/gloo/issues/509): a stranger who reaches one can write to the memory of
its process. So it listens on a loopback address, which is another one for each host. The agents of
the other hosts listen on the same address and port, and carry each connection to that host's agent:

    worker of host 1 ─▶ 127.77.0.1:4001, its agent ══ TLS ══▶ agent of host 0 ─▶ 127.77.0.1:4001

An agent connects only to what the workers of its newest generation listen on, and all connections
of a generation end with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError
from holdfast.wire.messages import LoopbackAddress, OpenTunnelMessage, TunnelOpenedMessage
from holdfast.wire.tls import Credentials

CHUNK_BYTES: Final = 256 << 10
"""Most bytes that are buffered of each direction of a connection, at each of three places."""
MAX_CONNECTIONS: Final = 4096
"""Connections at once; more are refused."""
MAX_HANDSHAKES: Final = 64
"""Connections at once that have not shown what they are; when there are more, the oldest ends."""
HANDSHAKE_TIMEOUT_S: Final = 5.0
"""Time that connecting to another agent may take, and its first message."""
OPEN_TIMEOUT_S: Final = 10.0
"""Time that it may take to listen, or to end the connections of a generation."""
ACCEPT_PAUSE_S: Final = 0.1
"""Wait after a connection could not be accepted."""
RESET_TIMEOUT_MS: Final = 10_000
"""Time that the kernel may keep data that the other host does not acknowledge."""

_HEADER: Final = struct.Struct("!8sQ4sH")
"""First message of an agent: the generation, and the address and port to connect to."""
_MAGIC: Final = b"hftunnel"

T = TypeVar("T")


class Tunnel:
    """The tunnel of one agent, in a thread of its own.

    Args:
        interface: The address on which other agents connect.
        credentials: Credentials that it shows to other agents.

    Attributes:
        address: Address at which other agents connect, with the network and machine it is on.
        num_refused: Connections that were refused.
    """

    def __init__(self, interface: str, credentials: Credentials) -> None:
        self._client = credentials.client_context()
        self._generation = self._newest = 0
        self._exposed = frozenset[tuple[str, int]]()
        self._listeners: list[asyncio.Server] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._connections = set[asyncio.Task[None]]()
        self.num_refused = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        self._listening = socket.create_server((interface, 0), family=family)
        self._listening.setblocking(False)
        self.address = f"{interface}:{self._listening.getsockname()[1]}/{_network()}"
        accepting = self._accept_all(credentials.server_context())
        self._accepting = asyncio.run_coroutine_threadsafe(accepting, self._loop)

    def open(self, wanted: OpenTunnelMessage) -> TunnelOpenedMessage:
        """Carry the connections of a generation; those of older ones end."""
        try:
            self._run(self._open(wanted))
        except HoldfastError as error:
            return TunnelOpenedMessage(generation=wanted.generation, error=str(error))
        return TunnelOpenedMessage(generation=wanted.generation)

    def end(self, generation: int) -> None:
        """End all connections: generations before this one are over. Does not wait."""
        self._loop.call_soon_threadsafe(self._end, generation)

    def close(self) -> None:
        """End everything."""
        with suppress(HoldfastError):
            self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(OPEN_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(OPEN_TIMEOUT_S)
        except TimeoutError:
            future.cancel()
            raise HoldfastError(
                f"the tunnel to other hosts did not answer within {OPEN_TIMEOUT_S:.0f} s; this "
                "host may be overloaded"
            ) from None

    async def _open(self, wanted: OpenTunnelMessage) -> None:
        if wanted.generation < self._newest:
            return  # its workers are being ended
        # Connections of older generations end before any of this one is carried.
        self._end(wanted.generation)
        self._generation = wanted.generation
        self._exposed = frozenset((each.address, each.port) for each in wanted.exposed)
        network = _network()
        for route in wanted.routes:
            tunnel, _, other = route.tunnel.rpartition("/")
            if other == network:
                continue  # a host on this machine, whose workers are reached directly
            carry = partial(self._handle, partial(self._carry, route.to, tunnel))
            self._listeners.append(await _listener(carry, route.to))

    def _end(self, generation: int) -> None:
        # No connection of the old generation is accepted or begun while those that exist end.
        self._newest = generation
        self._exposed = frozenset()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for connection in self._connections:
            connection.cancel()

    async def _close(self) -> None:
        self._accepting.cancel()
        ending = {*self._connections, *self._handshakes}
        self._end(self._newest)
        for handshake in self._handshakes:
            handshake.cancel()
        if ending:
            await asyncio.wait(ending, timeout=OPEN_TIMEOUT_S / 2)
        self._listening.close()

    async def _accept_all(self, context: ssl.SSLContext) -> None:
        """Accept connections of other agents, of which a few at once may still be strangers."""
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listening)
            except OSError:  # too many descriptors, or a connection that ended at once
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._handshakes) >= MAX_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            self._handshakes[self._loop.create_task(self._greet(accepted, context))] = None
            await asyncio.sleep(0)  # it begins, so that it closes its socket if it is cancelled

    async def _greet(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        """Let another agent say where it wants to connect to, and carry its connection there."""
        task = asyncio.current_task()
        assert task is not None
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        with accepted:
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    transport, _ = await self._loop.connect_accepted_socket(
                        lambda: protocol, accepted, ssl=context
                    )
                    header = await reader.readexactly(_HEADER.size)
            except (OSError, EOFError, asyncio.CancelledError):
                self.num_refused += 1
                return
            finally:
                self._handshakes.pop(task, None)
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            await self._handle(partial(self._accept, header), reader, writer)

    async def _handle(
        self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection, as a task that can be cancelled."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                self.num_refused += 1
            else:
                await serve(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the other end sees it close
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _accept(
        self, header: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection of another agent, to a worker of this host."""
        magic, generation, packed, port = _HEADER.unpack(header)
        target = socket.inet_ntoa(packed), port
        # A certificate is not enough: only ports that workers of this generation expose are open.
        if (magic, generation) != (_MAGIC, self._generation) or target not in self._exposed:
            self.num_refused += 1
            return
        await _join((reader, writer), await _soon(asyncio.open_connection(*target)))

    async def _carry(
        self,
        to: LoopbackAddress,
        tunnel: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """A connection of a worker of this host, to one of another host."""
        host, _, port = tunnel.rpartition(":")
        header = _HEADER.pack(_MAGIC, self._generation, socket.inet_aton(to.address), to.port)
        remote = await _soon(
            asyncio.open_connection(
                host.strip("[]"), int(port), ssl=self._client, limit=CHUNK_BYTES
            )
        )
        remote[1].write(header)
        await _join((reader, writer), remote)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _listener(serve: Serve, at: LoopbackAddress) -> asyncio.Server:
    """Listen where workers of another host do.

    Raises:
        HoldfastError: The port is in use.
    """
    try:
        return await asyncio.start_server(serve, at.address, at.port, limit=CHUNK_BYTES)
    except OSError as error:
        raise HoldfastError(
            f"port {at.port} of {at.address}, where a worker of another host listens, cannot be "
            f"forwarded on host {socket.gethostname()}: {error.strerror}; end what uses the port "
            "here, or set network=trusted"
        ) from None


async def _soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):  # `wait_for` may lose a cancellation
        return await work


async def _join(one: Streams, other: Streams) -> None:
    """Pass on what comes from either end until one of them closes."""
    for _, writer in (one, other):
        writer.transport.set_write_buffer_limits(high=CHUNK_BYTES)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, RESET_TIMEOUT_MS)
    both = [
        asyncio.ensure_future(_pass_on(one[0], other[1])),
        asyncio.ensure_future(_pass_on(other[0], one[1])),
    ]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for _, writer in (one, other):
            writer.close()  # sends what it has
        for _, writer in (one, other):
            with suppress(OSError):
                await _soon(writer.wait_closed())
    finally:
        for each in both:
            each.cancel()
        for _, writer in (one, other):
            writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            # While the other end does not read, nothing more is read here.
            await writer.drain()


def _network() -> str:
    """Identifies the network of this process on this machine: its loopback is one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116  # not the link's target
