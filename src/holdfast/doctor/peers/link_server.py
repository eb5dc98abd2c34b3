"""Link server: answers the other hosts that measure their links to this one, and measures its own.

Both ends of a connection show the certificates that workers of a run show. Datagrams are signed;
they tell apart a link that works in one direction only, over which no connection can be made.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import statistics
import struct
import threading
import time
from contextlib import suppress
from typing import Final, Self

from holdfast.doctor.peers.link import Link, Reach
from holdfast.errors import JobError
from holdfast.wire.tls import Credentials, Identity, Role

CONNECT_TIMEOUT_S: Final = 3.0
TRANSFER_TIMEOUT_S: Final = 20.0
"""How long one measurement may wait for its next bytes."""
MAX_CONNECTIONS: Final = 16
PINGS: Final = 20
FIRST_BYTES: Final = 256 << 10
"""How much is sent to estimate the rate."""
MEASURED_S: Final = 0.3
MAX_BYTES: Final = 64 << 20
DATAGRAMS: Final = 3
MAX_NAME: Final = 300
_SIZE: Final = struct.Struct("!I")
_MAC_BYTES: Final = 32
_CHUNK: Final = memoryview(bytes(256 << 10))


class LinkServer:
    """Where a host accepts links from others, within its context.

    Args:
        address: Of the interface.
        credentials: Those of the host's workers.
        key: With which datagrams are signed.

    Attributes:
        port: Where it listens, for connections and datagrams.
        heard: The hosts whose datagrams have arrived.

    Raises:
        JobError: It cannot listen there.
    """

    def __init__(self, address: str, credentials: Credentials, key: bytes) -> None:
        self._credentials, self._key = credentials, key
        self._context = credentials.server_context()
        self._slots = threading.Semaphore(MAX_CONNECTIONS)
        self.heard: set[str] = set()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, 0), family=family)
            self._datagrams = socket.socket(family, socket.SOCK_DGRAM)
            self.port = int(self._listener.getsockname()[1])
            self._datagrams.bind((address, self.port))
        except OSError as error:
            raise JobError(
                f"this host cannot listen on {address}: {error.strerror}; name an address of one "
                "of its interfaces by --address"
            ) from None

    def __enter__(self) -> Self:
        for work in (self._accept, self._hear):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, self._datagrams):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            each.close()

    def measure(self, source: str, target: str, address: str, port: int) -> Link:
        """Measure the link from this host, called `source`, to another one."""
        self._send_datagrams(source, (address, port))
        context = self._credentials.client_context()
        try:
            with (
                socket.create_connection((address, port), CONNECT_TIMEOUT_S) as plain,
                context.wrap_socket(plain) as connection,
            ):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(TRANSFER_TIMEOUT_S)
                identity = Identity.of_peer(connection.getpeercert())
                if identity is None or identity.role != Role.DATA:
                    return _unreached(source, target, Reach.UNLIKE, "it is not a host of this run")
                latency_s = statistics.median(_send(connection, 1) for _ in range(PINGS))
                seconds = _send(connection, FIRST_BYTES)
                size = int(min(MAX_BYTES, max(FIRST_BYTES, FIRST_BYTES / seconds * MEASURED_S)))
                rate = size / max(1e-9, _send(connection, size) - latency_s)
        except OSError as error:
            return _unreached(source, target, _reach_of(error), str(error.strerror or error))
        return Link(
            source=source,
            target=target,
            reach=Reach.REACHED,
            latency_s=latency_s,
            bytes_per_s=rate,
        )

    def _send_datagrams(self, source: str, to: tuple[str, int]) -> None:
        name = source.encode()
        for _ in range(DATAGRAMS):
            with suppress(OSError):
                self._datagrams.sendto(name + hmac.digest(self._key, name, "sha256"), to)

    def _hear(self) -> None:
        with suppress(OSError):  # closed
            while True:
                datagram = self._datagrams.recv(MAX_NAME + _MAC_BYTES)
                name, mac = datagram[:-_MAC_BYTES], datagram[-_MAC_BYTES:]
                if hmac.compare_digest(mac, hmac.digest(self._key, name, "sha256")):
                    self.heard.add(name.decode())

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection = self._listener.accept()[0]
                if not self._slots.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, plain: socket.socket) -> None:
        """Confirm each amount of bytes once it has all arrived."""
        try:
            plain.settimeout(TRANSFER_TIMEOUT_S)
            with (
                suppress(OSError),
                self._context.wrap_socket(plain, server_side=True) as connection,
            ):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                identity = Identity.of_peer(connection.getpeercert())
                is_host = identity is not None and identity.role == Role.DATA
                while is_host and (head := connection.recv(_SIZE.size)):
                    left = min(MAX_BYTES, _SIZE.unpack(head)[0])
                    while left and (came := connection.recv(min(left, len(_CHUNK)))):
                        left -= len(came)
                    connection.sendall(b".")
        finally:
            plain.close()
            self._slots.release()


def _send(connection: ssl.SSLSocket, size: int) -> float:
    """Send so many bytes; returns the seconds until they are confirmed."""
    began = time.perf_counter()
    connection.sendall(_SIZE.pack(size))
    left = size
    while left:
        part = _CHUNK[: min(left, len(_CHUNK))]
        connection.sendall(part)
        left -= len(part)
    if not connection.recv(1):
        raise OSError("the other end has closed the connection")
    return time.perf_counter() - began


def _reach_of(error: OSError) -> Reach:
    match error:
        case TimeoutError():
            return Reach.SILENT
        case ConnectionRefusedError():
            return Reach.REFUSED
        case ssl.SSLError() | ConnectionError():
            return Reach.UNLIKE
    return Reach.NO_ROUTE


def _unreached(source: str, target: str, reach: Reach, why: str) -> Link:
    return Link(source=source, target=target, reach=reach, why=why)
