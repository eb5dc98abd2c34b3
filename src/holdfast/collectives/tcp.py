"""Transfers over the connections between the workers of different hosts; see `connections`.

One thread sends and receives on all connections at once, encrypted or not. No wait outlives the
generation by more than `ABORT_POLL_S`, and no other thread writes to memory that has been given
back.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NoReturn, Protocol

from holdfast.arena.memory import ABORT_POLL_S
from holdfast.arena.worker_status import WorkerStatus
from holdfast.errors import HoldfastError

TURN_BYTES: Final = 4 << 20
"""Bytes that a connection sends, and that it receives, before it is another one's turn: what the
kernel buffers at most, so that the other end has much to receive at a time."""
BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors of a socket that would have to wait."""

Place = tuple[int, int]
"""The position of another host in its generation, and a lane."""
Buffers = Iterator[memoryview | None]
"""Memory to send or to receive into, one after the other; None where there is nothing to do until
something else has been received. It is resumed when a buffer is sent, or full."""


STALL_S: Final = 2.0
"""Time in which nothing may come from a peer, of which its host may know that it is computing."""


class StallReport(Protocol):
    """Takes note of a peer that does not send what is awaited."""

    def __call__(self, place: Place, *, is_broken: bool) -> None:
        """Report the peer at a place, and whether the connection to it has broken."""


class ConnectionLost(Exception):
    """Connections have ended. Whether their hosts are lost is for the coordinator to decide.

    Attributes:
        places: The peers, if a transfer has found it.
    """

    places: Collection[Place] = ()


class Wake:
    """Wakes a transfer of another thread, whose buffers wait for what this one computes."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake the transfer, now or when it waits next."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Wait again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close it."""
        os.close(self.fd)


class Deadline:
    """Ends waits: at an abort, or after a time.

    Args:
        check_abort: Raises if the generation is over.
        timeout_s: Limit of all waits together, seconds.
        status: Shows that the worker waits, while it does; None in another thread.
        report: Callback for peers that do not send; None in another thread.
    """

    def __init__(
        self,
        check_abort: Callable[[], None],
        timeout_s: float,
        status: WorkerStatus | None,
        report: StallReport | None,
    ) -> None:
        self._check_abort = check_abort
        self._timeout_s = timeout_s
        self._status = status
        self._report = report
        self._ends_at = time.monotonic() + timeout_s
        self._stalled_at = time.monotonic() + STALL_S

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

    def check(self, what: str, awaited: Collection[Place] = ()) -> None:
        """Look whether a wait must end; see `wait`. Peers that are awaited for long are reported,
        again and again.
        """
        self._check_abort()
        now = time.monotonic()
        if now > self._stalled_at:
            self._stalled_at = now + STALL_S
            if self._report is not None:
                for place in awaited:
                    self._report(place, is_broken=False)
        if now > self._ends_at:
            raise HoldfastError(
                f"waited {self._timeout_s:.0f} s for {what}; see whether the network lets the "
                "hosts reach each other, and raise timeout_s if a step may take that long"
            )

    def poll(self, poll: select.poll, what: str, awaited: Collection[Place] = ()) -> None:
        """Wait until one of the sockets in `poll` is ready; see `wait`."""
        with self._waiting():
            self.check(what)
            # Each round is short, so that an abort is seen in time.
            while not poll.poll(1000 * ABORT_POLL_S):
                self.check(what, awaited)
            self._stalled_at = time.monotonic() + STALL_S

    def until(self, event: threading.Event, what: str, awaited: Collection[Place]) -> None:
        """Wait until another thread sets `event`; see `wait` and `check`."""
        with self._waiting():
            while not event.wait(ABORT_POLL_S):
                self.check(what, awaited)

    def glance(
        self, poll: select.poll, what: str, awaited: Collection[Place]
    ) -> list[tuple[int, int]]:
        """Wait a moment; returns which sockets in `poll` are ready, and for what. See `check`."""
        with self._waiting():
            self.check(what, awaited)
            return poll.poll(1000 * ABORT_POLL_S)

    def await_decision(self, lost: ConnectionLost, what: str) -> NoReturn:
        """Report connections that have broken, and wait for what the coordinator decides.

        Raises:
            Aborted: The generation is over.
            ConnectionLost: This is another thread; the worker's is to report it.
            HoldfastError: It took too long.
        """
        if self._report is None:
            raise lost
        # All broken ones are reported. Then the coordinator ends the generation.
        for place in lost.places:
            self._report(place, is_broken=True)
        self.wait(None, 0, what)
        raise AssertionError("unreachable")

    def in_thread(self, check: Callable[[], None]) -> Deadline:
        """This deadline for another thread, which shows no wait and reports no peer.

        Args:
            check: Raises if the thread is to end.
        """

        def check_both() -> None:
            check()
            self._check_abort()

        return Deadline(check_both, self._timeout_s, None, None)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._status is None:
            yield
            return
        before = self._status.begin_wait()
        try:
            yield
        finally:
            self._status.enter(before)


def transfer(
    flows: Mapping[Place, tuple[socket.socket, Buffers, Buffers]],
    deadline: Deadline,
    what: str,
    wake: Wake | None = None,
) -> None:
    """Send and receive on all connections until nothing is left to do.

    Args:
        flows: For each peer, the connection, what to send and where to receive.
        deadline: Ends the wait.
        what: Subject of the wait, in words.
        wake: Set when buffers can continue that depend on nothing that is received.

    Raises:
        Aborted: The generation is over.
        ConnectionLost: Connections have broken, and this is another thread than the worker's.
        HoldfastError: It took too long.
    """
    running = [_Flow(place, *flow) for place, flow in flows.items()]
    while running:
        try:
            moved = [flow.move() for flow in running]  # every one, whatever the others do
        except ConnectionLost as lost:
            lost.places = [flow.place for flow in running if flow.is_broken]
            deadline.await_decision(lost, what)
        # Flows that still have a direction open; sleep only if none of them could move.
        running = [flow for flow in running if not flow.is_over]
        if running and not any(moved):
            poll = select.poll()
            for flow in running:
                poll.register(flow.socket, flow.events)
            if wake is not None:
                poll.register(wake.fd, select.POLLIN)
            deadline.poll(poll, what, [flow.place for flow in running])
            if wake is not None:
                wake.clear()


class _Flow:
    """Both directions of one connection under way."""

    def __init__(
        self, place: Place, connection: socket.socket, outgoing: Buffers, incoming: Buffers
    ) -> None:
        self.place = place
        self.socket = connection
        self.is_broken = False
        self._outgoing = outgoing
        self._incoming = incoming
        self._to_send, self._sends = _next(outgoing)
        self._to_fill, self._receives = _next(incoming)
        self._awaited = {select.POLLOUT: select.POLLOUT, select.POLLIN: select.POLLIN}

    @property
    def is_over(self) -> bool:
        return not (self._sends or self._receives)

    @property
    def events(self) -> int:
        """Events that the socket must be ready for to move on."""
        sends = self._awaited[select.POLLOUT] if self._to_send is not None else 0
        return sends | (self._awaited[select.POLLIN] if self._to_fill is not None else 0)

    def move(self) -> bool:
        """Send and receive what can be without waiting; returns whether anything was."""
        try:
            sent = self._send()
            received = self._receive()
        except ConnectionLost:
            self.is_broken = True
            raise
        return sent or received

    def _send(self) -> bool:
        if self._sends and self._to_send is None:
            self._to_send, self._sends = _next(self._outgoing)
        if self._to_send is None:
            return False
        # The same bytes are offered until they are taken, as OpenSSL requires.
        count = self._try(select.POLLOUT, self.socket.send, self._to_send[:TURN_BYTES])
        self._to_send = self._to_send[count:]
        if not self._to_send:
            self._to_send, self._sends = _next(self._outgoing)
        return count > 0

    def _receive(self) -> bool:
        received = 0
        while received < TURN_BYTES:  # TLS returns a record at a time, of 16 KiB at most
            if self._receives and self._to_fill is None:
                self._to_fill, self._receives = _next(self._incoming)
            if self._to_fill is None:
                break
            count = self._try(select.POLLIN, self.socket.recv_into, self._to_fill)
            if count == 0:
                break
            received += count
            self._to_fill = self._to_fill[count:]
            if not self._to_fill:
                self._to_fill, self._receives = _next(self._incoming)
        return received > 0

    def _try(
        self, event: int, transfer_some: Callable[[memoryview], int], buffer: memoryview
    ) -> int:
        """Send or receive; returns how many bytes it was, 0 if it would have to wait."""
        try:
            count = transfer_some(buffer)
        except BLOCKED as blocked:
            self._awaited[event] = awaited_by(blocked, event)
            return 0
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        if count == 0:
            raise ConnectionLost("the other end has closed the connection")
        return count


def awaited_by(blocked: OSError, event: int) -> int:
    """Event to wait for with a socket that could not do what usually needs `event`: with TLS, to
    send may mean to receive first.
    """
    if isinstance(blocked, ssl.SSLWantReadError):
        return select.POLLIN
    return select.POLLOUT if isinstance(blocked, ssl.SSLWantWriteError) else event


def _next(buffers: Buffers) -> tuple[memoryview | None, bool]:
    """The next buffer that is not empty, and whether the iterator has not ended."""
    for buffer in buffers:
        if buffer is None or len(buffer):
            return buffer, True
    return None, False
