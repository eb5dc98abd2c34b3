"""Connections between the workers of different hosts, and the handshakes that they begin with.

A worker has one connection for each other host and each lane that it serves; see `core.step.plan`.
They belong to one generation. In a handshake both ends prove two things: by certificates, that they
are workers of this run (not on a trusted network, where nothing is encrypted); and that they know
the key of the generation. So messages of older generations and of strangers are never read.

All handshakes of a worker run at once, in one thread: a stranger that is slow delays no one.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from holdfast.collectives.tcp import BLOCKED, ConnectionLost, Deadline, Place, awaited_by
from holdfast.wire.tls import Credentials, Identity, Role

BACKLOG: Final = 64
MAX_ACCEPTED: Final = 64
"""Handshakes with those who connect, at once; when there are more, the oldest is ended."""
HANDSHAKE_TIMEOUT_S: Final = 5.0
"""Time that one handshake may take, seconds."""
RETRY_S: Final = 0.02
"""Wait before connecting again to a worker that does not accept yet, seconds."""
RESET_TIMEOUT_MS: Final = 10_000
"""Time that the kernel may keep data that the other host does not acknowledge."""

_HELLO: Final = struct.Struct("!8sQII16s")
_MAGIC: Final = b"holdfast"
_MAC_BYTES: Final = 32
_NONCE_BYTES: Final = 16

Steps = Generator[int, None, Place]
"""A handshake: it yields what its socket must be ready for to go ahead."""


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


class Listener:
    """Socket at which a worker accepts connections, and maker of its own.

    Args:
        address: Address of the interface to listen on.
        credentials: Certificate that it shows to others; None on a trusted network.

    Attributes:
        address: Address at which it listens, with the port.
    """

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.socket = socket.create_server((address, 0), family=_family(address), backlog=BACKLOG)
        self.socket.setblocking(False)
        self.address = f"{address}:{self.socket.getsockname()[1]}"
        self._accepts = credentials.server_context() if credentials else None
        self._connects = credentials.client_context() if credentials else None

    def connect(self, peers: Peers, deadline: Deadline) -> dict[Place, socket.socket]:
        """Connect to all peers: those of hosts before this one, then those after it connect here.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It takes too long.
        """
        making = _Making(self, peers)
        try:
            # One round: connect where it is due, wait a moment, and go ahead wherever a socket is
            # ready.
            while missing := making.missing:
                making.begin_due()
                poll = select.poll()
                poll.register(self.socket, select.POLLIN)
                for each in making.handshakes:
                    poll.register(each.socket, each.events)
                what = f"a connection with {peers.addresses[min(missing)]}"
                ready = {fd for fd, _ in deadline.glance(poll, what, missing)}
                making.advance(ready)
                if self.socket.fileno() in ready:
                    making.accept()
        except BaseException:
            for connection in making.made.values():
                connection.close()
            raise
        finally:
            for each in making.handshakes:
                each.socket.close()
        return making.made

    def close(self) -> None:
        """Accept no more."""
        self.socket.close()

    def connecting(self, peers: Peers, place: Place) -> Handshake:
        """A new connection to a place."""
        address, _, port = peers.addresses[place].rpartition(":")
        plain = socket.socket(_family(address), socket.SOCK_STREAM)
        handshake = Handshake(plain, peers, self._connects, place)
        with suppress(BlockingIOError):
            plain.connect((address, int(port)))
        return handshake

    def accepted(self, peers: Peers) -> Handshake:
        """A connection that someone has made.

        Raises:
            OSError: There is none any more.
        """
        return Handshake(self.socket.accept()[0], peers, self._accepts, None)


class Handshake:
    """A connection whose handshake is under way.

    Args:
        plain: The connection.
        peers: The generation.
        context: Context of TLS; None for a plain connection.
        place: Place that it connects to; None if it was accepted.

    Attributes:
        socket: The connection, encrypted once that has begun.
        place: Place of the other end; None until an accepted one has proved it.
        events: Events that the socket must be ready for to go ahead.
        late_at: End of its time, monotonic seconds.
    """

    def __init__(
        self,
        plain: socket.socket,
        peers: Peers,
        context: ssl.SSLContext | None,
        place: Place | None,
    ) -> None:
        plain.setblocking(False)
        self.socket = plain
        self.place = place
        self._peers = peers
        self.late_at = time.monotonic() + HANDSHAKE_TIMEOUT_S
        self.is_accepted = place is None
        self._steps = self._greet(context) if place is None else self._introduce(context, place)
        self.events = next(self._steps)

    def advance(self) -> bool:
        """Go ahead as far as possible without waiting; returns whether it is complete.

        Raises:
            ConnectionLost: The other end is not a worker of the generation.
            OSError: The connection is broken.
        """
        try:
            self.events = next(self._steps)
        except StopIteration as end:
            self.place = end.value
            return True
        return False

    def _introduce(self, context: ssl.SSLContext | None, place: Place) -> Steps:
        """The connecting end."""
        yield select.POLLOUT
        # First the certificates, so that nothing of the generation is said to strangers.
        yield from self._encrypt(context, accepts=False)
        peers = self._peers
        nonce = secrets.token_bytes(_NONCE_BYTES)
        hello = _HELLO.pack(_MAGIC, peers.generation, peers.host, place[1], nonce)
        yield from self._send(hello)
        answer = yield from self._receive(_NONCE_BYTES + _MAC_BYTES)
        both = hello + answer[:_NONCE_BYTES]
        # The other end knows the key, and has answered to this nonce: its proof is of now.
        self._verify(answer[_NONCE_BYTES:], b"accept", both)
        yield from self._send(self._mac(b"connect", both))
        return place

    def _greet(self, context: ssl.SSLContext | None) -> Steps:
        """The accepting end."""
        yield select.POLLIN
        yield from self._encrypt(context, accepts=True)
        hello = yield from self._receive(_HELLO.size)
        magic, generation, host, lane, _ = _HELLO.unpack(hello)
        # A worker that has not noticed yet that its generation is over.
        if (magic, generation) != (_MAGIC, self._peers.generation):
            raise ConnectionLost("a connection of another generation")
        both = hello + secrets.token_bytes(_NONCE_BYTES)
        # Each end's proof covers both nonces and its own role, so that none can be sent back or
        # again.
        yield from self._send(both[_HELLO.size :] + self._mac(b"accept", both))
        self._verify((yield from self._receive(_MAC_BYTES)), b"connect", both)
        return host, lane

    def _encrypt(
        self, context: ssl.SSLContext | None, *, accepts: bool
    ) -> Generator[int, None, None]:
        if context is None:
            return
        encrypted = context.wrap_socket(
            self.socket, server_side=accepts, do_handshake_on_connect=False
        )
        self.socket = encrypted
        while True:
            try:
                encrypted.do_handshake()
                break
            except BLOCKED as blocked:
                yield awaited_by(blocked, select.POLLIN)
        identity = Identity.of_peer(encrypted.getpeercert())
        if identity is None or identity.role != Role.DATA:
            raise ConnectionLost("the other end has no certificate of a worker")

    def _send(self, data: bytes) -> Generator[int, None, None]:
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BLOCKED as blocked:
                yield awaited_by(blocked, select.POLLOUT)

    def _receive(self, count: int) -> Generator[int, None, bytes]:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except BLOCKED as blocked:
                yield awaited_by(blocked, select.POLLIN)
                continue
            if not part:
                raise ConnectionLost("the other end has closed the connection")
            data += part
        return data

    def _mac(self, role: bytes, hello: bytes) -> bytes:
        return hmac.digest(self._peers.key, role + hello, "sha256")

    def _verify(self, proof: bytes, role: bytes, hello: bytes) -> None:
        if not hmac.compare_digest(proof, self._mac(role, hello)):
            raise ConnectionLost("the other end does not know the key of the generation")


class _Making:
    """The connections of a generation while they are made."""

    def __init__(self, listener: Listener, peers: Peers) -> None:
        self._listener = listener
        self._peers = peers
        # Of each pair of hosts the later one connects, so that there is one connection.
        self._due = {place: 0.0 for place in peers.addresses if place[0] < peers.host}
        self.handshakes: list[Handshake] = []
        self.made: dict[Place, socket.socket] = {}

    @property
    def missing(self) -> set[Place]:
        """Places without a connection."""
        return {*self._peers.addresses} - self.made.keys()

    def begin_due(self) -> None:
        """Connect where it is time to."""
        now = time.monotonic()
        for place in [each for each, due in self._due.items() if due <= now]:
            del self._due[place]
            try:
                self.handshakes.append(self._listener.connecting(self._peers, place))
            except OSError:  # there is no route, perhaps for a moment
                self._due[place] = now + RETRY_S

    def accept(self) -> None:
        """Begin a handshake with the next that has connected."""
        accepted = [each for each in self.handshakes if each.is_accepted]
        # Strangers cannot use up descriptors: the oldest handshake makes way.
        if len(accepted) >= MAX_ACCEPTED:
            self._end(accepted[0])
        with suppress(OSError):
            self.handshakes.append(self._listener.accepted(self._peers))

    def advance(self, ready: set[int]) -> None:
        """Advance the handshakes whose sockets are ready, and end those that take too long."""
        now = time.monotonic()
        for each in list(self.handshakes):
            try:
                is_complete = each.socket.fileno() in ready and each.advance()
            except (ConnectionLost, OSError):
                self._end(each)
                continue
            if is_complete:
                self._complete(each)
            elif now > each.late_at:
                self._end(each)

    def _complete(self, handshake: Handshake) -> None:
        place = handshake.place
        # A second connection for a place, or one for a lane that this worker does not serve.
        if place is None or place not in self.missing or place not in self._peers.addresses:
            self._end(handshake)
            return
        self.handshakes.remove(handshake)
        made = handshake.socket
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, RESET_TIMEOUT_MS)
        self.made[place] = made

    def _end(self, handshake: Handshake) -> None:
        """Close a connection that is not one of the generation, and try again if it is needed."""
        self.handshakes.remove(handshake)
        handshake.socket.close()
        if not handshake.is_accepted and handshake.place is not None:
            self._due[handshake.place] = time.monotonic() + RETRY_S


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
