"""Links: how well hosts reach each other, measured where their workers accept each other.

    source                                   target
    ── datagrams, signed ──────────────────▶ heard
    ── connect; hello, signed ─────────────▶
    ◀── ready, once it measures no other ───
    ── size, bytes ─────────────────────────▶
    ◀── its time, once all have come ────────

A host takes part in one measurement at a time. A measurement takes its two hosts in the order of
their ranks, so none waits for another in a circle. Datagrams tell apart a link that works in one
direction only, over which no connection can be made.
"""

from __future__ import annotations

import hmac
import socket
import statistics
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Final, Self

from holdfast.doctor.peers.report import LinkReport, Reach

CONNECT_TIMEOUT_S: Final = 3.0
TRANSFER_TIMEOUT_S: Final = 20.0
"""Longest wait of one measurement for its next bytes."""
READY_TIMEOUT_S: Final = 300.0
"""Longest wait for a host that still checks itself, or measures others."""
MAX_CONNECTIONS: Final = 256
PINGS: Final = 20
FIRST_BYTES: Final = 256 << 10
"""Amount that is sent to estimate the rate."""
MEASURED_S: Final = 0.3
MAX_BYTES: Final = 64 << 20
DATAGRAMS: Final = 3
_RANK: Final = struct.Struct("!I")
_SIZE: Final = struct.Struct("!I")
_TIME: Final = struct.Struct("!d")
_MAC_BYTES: Final = 32
_HELLO_BYTES: Final = _RANK.size + _MAC_BYTES
_READY: Final = b"!"
_CHUNK: Final = memoryview(bytes(256 << 10))


class Links:
    """Measures the links of this host, and answers the others that measure theirs to it.

    Args:
        rank: Rank of this host.
        addresses: Address and port of each host for connections and datagrams, by its rank.
        listener: Listens there, for this one.
        key: Secret with which hosts sign.

    Attributes:
        heard: The ranks of the hosts whose datagrams have arrived.
    """

    def __init__(
        self, rank: int, addresses: Mapping[int, str], listener: socket.socket, key: bytes
    ) -> None:
        self._rank = rank
        self._key = key
        self._places = {each: _place(at) for each, at in addresses.items() if each != rank}
        self._listener = listener
        listener.setblocking(True)
        self._datagrams = socket.socket(listener.family, socket.SOCK_DGRAM)
        self._datagrams.bind(listener.getsockname()[:2])
        self.heard: set[int] = set()
        self._busy = threading.Lock()  # held by what this host measures, or is measured for
        self._slots = threading.Semaphore(MAX_CONNECTIONS)

    def __enter__(self) -> Self:
        """Answer the others from now on; until `measure`, they wait."""
        self._busy.acquire()
        self._send_datagrams()
        for work in (self._accept, self._hear):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Keep answering: others may still measure. It ends with the process."""

    def measure(self) -> list[LinkReport]:
        """Measure the links to all others, in turn."""
        self._send_datagrams()  # again: not all others may have listened before
        self._busy.release()
        return [self._measured(rank, place) for rank, place in sorted(self._places.items())]

    def _send_datagrams(self) -> None:
        hello = self._hello()
        for place in self._places.values():
            for _ in range(DATAGRAMS):
                with suppress(OSError):
                    self._datagrams.sendto(hello, place)

    def _measured(self, target: int, place: tuple[str, int]) -> LinkReport:
        is_first = self._rank < target
        link = LinkReport(source=str(self._rank), target=str(target), reach=Reach.REACHED)
        try:
            with (
                self._busy if is_first else nullcontext(),
                socket.create_connection(place, CONNECT_TIMEOUT_S) as connection,
            ):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(self._hello())
                connection.settimeout(READY_TIMEOUT_S)
                if connection.recv(1) != _READY:
                    raise ConnectionError("it is not a host of this run")
                connection.settimeout(TRANSFER_TIMEOUT_S)
                with nullcontext() if is_first else self._busy:
                    return link.model_copy(update=_rates(connection))
        except OSError as error:
            why = str(error.strerror or error)
            return link.model_copy(update={"reach": _reach_of(error), "why": why})

    def _hello(self) -> bytes:
        rank = _RANK.pack(self._rank)
        return rank + hmac.digest(self._key, rank, "sha256")

    def _rank_of(self, hello: bytes) -> int | None:
        """The rank of the host that has signed something; None if none has."""
        rank = hello[: _RANK.size]
        mac = hello[_RANK.size :]
        is_signed = hmac.compare_digest(mac, hmac.digest(self._key, rank, "sha256"))
        return int(_RANK.unpack(rank)[0]) if is_signed else None

    def _hear(self) -> None:
        while True:
            rank = self._rank_of(self._datagrams.recv(_HELLO_BYTES))
            if rank is not None:
                self.heard.add(rank)

    def _accept(self) -> None:
        while True:
            with suppress(OSError):  # it is gone already
                connection = self._listener.accept()[0]
                if self._slots.acquire(blocking=False):
                    threading.Thread(target=self._answer, args=[connection], daemon=True).start()
                else:
                    connection.close()

    def _answer(self, connection: socket.socket) -> None:
        """Confirm each amount of bytes once it has all arrived."""
        try:
            with suppress(OSError), connection:
                connection.settimeout(TRANSFER_TIMEOUT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._rank_of(connection.recv(_HELLO_BYTES, socket.MSG_WAITALL)) is None:
                    return
                with self._busy:
                    connection.sendall(_READY)
                    while head := connection.recv(_SIZE.size, socket.MSG_WAITALL):
                        left = min(MAX_BYTES, _SIZE.unpack(head)[0])
                        while left and (came := connection.recv(min(left, len(_CHUNK)))):
                            left -= len(came)
                        connection.sendall(_TIME.pack(time.time()))
        finally:
            self._slots.release()


def _rates(connection: socket.socket) -> dict[str, float]:
    """Latency, rate, and how far the clock of the other end is ahead."""
    pings = [_send(connection, 1) for _ in range(PINGS)]
    latency_s = statistics.median(seconds for seconds, _ in pings)
    seconds, _ = _send(connection, FIRST_BYTES)
    size = int(min(MAX_BYTES, max(FIRST_BYTES, FIRST_BYTES / seconds * MEASURED_S)))
    taken_s, _ = _send(connection, size)
    return {
        "latency_s": latency_s,
        "bytes_per_s": size / max(1e-9, taken_s - latency_s),
        "ahead_s": min(pings)[1],  # by the quickest answer
    }


def _send(connection: socket.socket, size: int) -> tuple[float, float]:
    """Send so many bytes; returns the seconds until they are confirmed, and how far the clock of
    the other end was ahead halfway.
    """
    asked = time.time()
    began = time.perf_counter()
    connection.sendall(_SIZE.pack(size))
    left = size
    while left:
        part = _CHUNK[: min(left, len(_CHUNK))]
        connection.sendall(part)
        left -= len(part)
    answer = connection.recv(_TIME.size, socket.MSG_WAITALL)
    if len(answer) < _TIME.size:
        raise ConnectionError("the other end has closed the connection")
    taken_s = time.perf_counter() - began
    return taken_s, _TIME.unpack(answer)[0] - asked - taken_s / 2


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _reach_of(error: OSError) -> Reach:
    match error:
        case TimeoutError():
            return Reach.SILENT
        case ConnectionRefusedError():
            return Reach.REFUSED
        case ConnectionError():
            return Reach.UNLIKE
    return Reach.NO_ROUTE
