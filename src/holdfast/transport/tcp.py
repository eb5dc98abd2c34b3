"""TCP connections between the workers of different hosts, and transfers over them.

A worker has one connection for each other host and each lane that it serves; see `core.step.cells`.
They belong to one generation: each begins with a handshake in which both ends prove that they know
the generation's key, so messages of older generations and of strangers are never read.

One thread sends and receives on all connections at once. No wait outlives the generation by more
than `ABORT_POLL_S`, and no other thread writes to memory that has been given back.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from holdfast.arena.memory import ABORT_POLL_S, Phase
from holdfast.arena.worker_status import WorkerStatus
from holdfast.errors import HoldfastError

BACKLOG: Final = 64
HANDSHAKE_TIMEOUT_S: Final = 2.0
"""How long one peer may take for its handshake, seconds."""
RETRY_S: Final = 0.02
"""How long to wait before connecting again to a worker that does not accept yet, seconds."""
RESET_TIMEOUT_MS: Final = 10_000
"""How long the kernel may keep data that the other host does not acknowledge."""

_HELLO: Final = struct.Struct("!8sQII16s")
_MAGIC: Final = b"holdfast"
_MAC_BYTES: Final = 32
_NONCE_BYTES: Final = 16

Place = tuple[int, int]
"""The position of another host in its generation, and a lane."""
Buffers = Iterator[memoryview | None]
"""What to send, or where to receive, one after the other; None where there is nothing to do until
something else has been received. It is resumed when a buffer is sent, or full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The workers of other hosts that a worker connects to.

    Attributes:
        generation: The generation.
        key: Known to its members only.
        host: The position of this worker's host.
        addresses: The address of the worker at each place, as `address:port`.
    """

    generation: int
    key: bytes
    host: int
    addresses: Mapping[Place, str]


class ConnectionLost(Exception):
    """A connection has ended. Whether its host is lost is for the coordinator to decide."""


class Listener:
    """Where a worker accepts connections.

    Args:
        address: Of the interface to listen on.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.create_server((address, 0), family=family, backlog=BACKLOG)
        self.address = f"{address}:{self.socket.getsockname()[1]}"

    def connect(self, peers: Peers, deadline: Deadline) -> dict[Place, socket.socket]:
        """Connect to all peers: those of hosts before this one, then those after it connect here.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It takes too long.
        """
        made: dict[Place, socket.socket] = {}
        try:
            for place in sorted(peers.addresses):
                if place[0] < peers.host:
                    made[place] = _connect(peers, place, deadline)
            awaited = {place for place in peers.addresses if place[0] > peers.host}
            while awaited:
                place, accepted = self._accept(peers, awaited, deadline)
                made[place] = accepted
                awaited.remove(place)
        except BaseException:
            for each in made.values():
                each.close()
            raise
        return made

    def close(self) -> None:
        """Accept no more."""
        self.socket.close()

    def _accept(
        self, peers: Peers, awaited: set[Place], deadline: Deadline
    ) -> tuple[Place, socket.socket]:
        """The next connection of a peer that knows the key; others are closed."""
        while True:
            deadline.wait(self.socket, select.POLLIN, "other hosts to connect")
            accepted, _ = self.socket.accept()
            with ExitStack() as undo:
                undo.callback(accepted.close)
                with suppress(ConnectionLost, OSError):
                    place = _greet(accepted, peers, deadline)
                    if place in awaited:
                        undo.pop_all()
                        return place, _prepared(accepted)


class Deadline:
    """Ends waits: at an abort, or after a time.

    Args:
        check_abort: Raises if the generation is over.
        timeout_s: How long all waits may take together, seconds.
        status: Shows that the worker waits, while it does.
    """

    def __init__(
        self, check_abort: Callable[[], None], timeout_s: float, status: WorkerStatus
    ) -> None:
        self._check_abort, self._timeout_s, self._status = check_abort, timeout_s, status
        self._ends_at = time.monotonic() + timeout_s

    def wait(self, source: socket.socket | None, events: int, what: str) -> None:
        """Wait until a socket is ready; for the end of the generation if there is none.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        poll = select.poll()
        if source is not None:
            poll.register(source, events)
        self.poll(poll, what)

    def check(self, what: str) -> None:
        """Look whether a wait must end; see `wait`."""
        self._check_abort()
        if time.monotonic() > self._ends_at:
            raise HoldfastError(
                f"waited {self._timeout_s:.0f} s for {what}; see whether the network lets the "
                "hosts reach each other, and raise timeout_s if a step may take that long"
            )

    def poll(self, poll: select.poll, what: str) -> None:
        """Wait until one of the sockets in `poll` is ready; see `wait`."""
        before = self._status.enter(Phase.WAIT)
        try:
            self._poll(poll, what)
        finally:
            self._status.enter(before)

    def _poll(self, poll: select.poll, what: str) -> None:
        self.check(what)
        while not poll.poll(1000 * ABORT_POLL_S):
            self.check(what)


def transfer(
    flows: Sequence[tuple[socket.socket, Buffers, Buffers]], deadline: Deadline, what: str
) -> None:
    """Send and receive on all connections until nothing is left to do.

    Args:
        flows: For each connection, what to send and where to receive.
        deadline: Ends the wait.
        what: What is waited for, in words.

    Raises:
        Aborted: The generation is over.
        HoldfastError: It took too long.
    """
    running = [_Flow(*flow) for flow in flows]
    while running:
        try:
            moved = [flow.move() for flow in running]  # every one, whatever the others do
        except ConnectionLost:
            deadline.wait(None, 0, what)
            raise AssertionError("unreachable") from None
        running = [flow for flow in running if not flow.is_over]
        if running and not any(moved):
            poll = select.poll()
            for flow in running:
                poll.register(flow.socket, flow.events)
            deadline.poll(poll, what)


class _Flow:
    """What is under way on one connection."""

    def __init__(self, connection: socket.socket, outgoing: Buffers, incoming: Buffers) -> None:
        self.socket = connection
        self._outgoing, self._incoming = outgoing, incoming
        self._to_send, self._sends = _next(outgoing)
        self._to_fill, self._receives = _next(incoming)

    @property
    def is_over(self) -> bool:
        return not (self._sends or self._receives)

    @property
    def events(self) -> int:
        """What the socket must be ready for to move on."""
        sends = select.POLLOUT if self._to_send is not None else 0
        return sends | (select.POLLIN if self._to_fill is not None else 0)

    def move(self) -> bool:
        """Send and receive what can be without waiting; returns whether anything was."""
        sent, received = self._send(), self._receive()
        return sent or received

    def _send(self) -> bool:
        if self._sends and self._to_send is None:
            self._to_send, self._sends = _next(self._outgoing)
        if self._to_send is None:
            return False
        try:
            count = self.socket.send(self._to_send)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        self._to_send = self._to_send[count:]
        if not self._to_send:
            self._to_send, self._sends = _next(self._outgoing)
        return True

    def _receive(self) -> bool:
        if self._receives and self._to_fill is None:
            self._to_fill, self._receives = _next(self._incoming)
        if self._to_fill is None:
            return False
        try:
            count = self.socket.recv_into(self._to_fill)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        if count == 0:
            raise ConnectionLost("the other end has closed the connection")
        self._to_fill = self._to_fill[count:]
        if not self._to_fill:
            self._to_fill, self._receives = _next(self._incoming)
        return True


def _next(buffers: Buffers) -> tuple[memoryview | None, bool]:
    """The next buffer that is not empty, and whether the iterator has not ended."""
    for buffer in buffers:
        if buffer is None or len(buffer):
            return buffer, True
    return None, False


def _connect(peers: Peers, place: Place, deadline: Deadline) -> socket.socket:
    address, _, port = peers.addresses[place].rpartition(":")
    what = f"the worker at {peers.addresses[place]} to accept a connection"
    while True:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            with suppress(BlockingIOError):
                made.connect((address, int(port)))
            deadline.wait(made, select.POLLOUT, what)
            _introduce(made, peers, place, deadline)
            return _prepared(made)
        except (ConnectionLost, OSError):  # it may be in another generation still
            made.close()
            deadline.check(what)
            select.poll().poll(1000 * RETRY_S)
        except BaseException:
            made.close()
            raise


def _introduce(made: socket.socket, peers: Peers, place: Place, deadline: Deadline) -> None:
    """The connecting end of a handshake."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hello = _HELLO.pack(_MAGIC, peers.generation, peers.host, place[1], nonce)
    made.sendall(hello)
    answer = _exactly(made, _NONCE_BYTES + _MAC_BYTES, deadline)
    both = hello + answer[:_NONCE_BYTES]
    if not hmac.compare_digest(answer[_NONCE_BYTES:], _mac(peers.key, b"accept", both)):
        raise ConnectionLost("the other end does not know the key of the generation")
    made.sendall(_mac(peers.key, b"connect", both))


def _greet(accepted: socket.socket, peers: Peers, deadline: Deadline) -> Place:
    """The accepting end of a handshake; returns where the connection comes from."""
    accepted.setblocking(False)
    hello = _exactly(accepted, _HELLO.size, deadline)
    magic, generation, host, lane, _ = _HELLO.unpack(hello)
    if (magic, generation) != (_MAGIC, peers.generation):
        raise ConnectionLost("a connection of another generation")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    both = hello + nonce
    accepted.sendall(nonce + _mac(peers.key, b"accept", both))
    proof = _exactly(accepted, _MAC_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(peers.key, b"connect", both)):
        raise ConnectionLost("the other end does not know the key of the generation")
    return host, lane


def _exactly(source: socket.socket, count: int, deadline: Deadline) -> bytes:
    """The next `count` bytes of a handshake.

    Raises:
        ConnectionLost: They do not come soon.
    """
    data, late_at = bytearray(), time.monotonic() + HANDSHAKE_TIMEOUT_S
    while len(data) < count:
        poll = select.poll()
        poll.register(source, select.POLLIN)
        deadline.check("a handshake")
        if not poll.poll(1000 * ABORT_POLL_S):
            if time.monotonic() > late_at:
                raise ConnectionLost("the handshake takes too long")
            continue
        part = source.recv(count - len(data))
        if not part:
            raise ConnectionLost("the other end has closed the connection")
        data += part
    return bytes(data)


def _mac(key: bytes, role: bytes, hello: bytes) -> bytes:
    return hmac.digest(key, role + hello, "sha256")


def _prepared(made: socket.socket) -> socket.socket:
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, RESET_TIMEOUT_MS)
    return made
