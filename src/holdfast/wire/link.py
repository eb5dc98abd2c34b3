"""Link: a client's stream to the coordinator, reconnected whenever it breaks or is redirected.

It carries the newest message each way: a message is dropped if a newer one comes before it could be
sent, and on a new stream the newest is sent again.

A thread keeps the stream, so the client never waits for the network. Whatever ends a stream, the
next one begins soon, for no message is lost for good. Only a coordinator that refuses the client
ends the link: `receive` raises. One that has been replaced is not asked and not believed any more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import grpc

from holdfast.errors import JobError
from holdfast.wire.coordinator_channel import CoordinatorChannel
from holdfast.wire.messages import Message
from holdfast.wire.rpc import details_of, status_of
from holdfast.wire.tls import Credentials

RETRY_S: Final = 0.02
"""Wait before reconnecting."""
CLOSE_TIMEOUT_S: Final = 2.0
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""Another try would end like this one."""

Outgoing = TypeVar("Outgoing", bound=Message)
Incoming = TypeVar("Incoming", bound=Message)


class CoordinatorLink(Generic[Outgoing, Incoming]):
    """The link of one client; readable, for `select`, when a message has come.

    Args:
        address: The coordinator's at first, in gRPC's syntax.
        call: Returns the stream to use, given a channel.
        credentials: Defined in `open_channel`.
    """

    def __init__(
        self,
        address: str,
        call: Callable[[grpc.Channel], Any],
        credentials: Credentials | None = None,
    ) -> None:
        self._address = address
        self._call = call
        self._credentials = credentials
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._changed = threading.Condition()
        self._said: tuple[int, Outgoing | None] = (0, None)
        self._heard: Incoming | None = None
        self._refusal: str | None = None
        self._broken_since: float | None = None
        self._stream = 0
        self._closing = False
        self._replies: Any = None
        self._thread = threading.Thread(target=self._keep, name="holdfast-link", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._wake

    @property
    def address(self) -> str:
        """The coordinator's address, as it is known now."""
        return self._address

    @property
    def broken_s(self) -> float:
        """Time since the stream broke, seconds."""
        since = self._broken_since
        return 0.0 if since is None else time.monotonic() - since

    def send(self, message: Outgoing) -> None:
        """Send a message once the coordinator can be reached, unless a newer one comes first."""
        with self._changed:
            # The number tells a stream that there is news, also if an equal message follows.
            self._said = (self._said[0] + 1, message)
            self._changed.notify_all()

    def receive(self) -> Incoming | None:
        """The newest message since the last call; None if none has come.

        Raises:
            JobError: The coordinator refuses this client.
        """
        with self._changed:
            if self._refusal is not None:
                raise JobError(self._refusal)
            if self._heard is None:
                return None
            os.eventfd_read(self._wake)
            heard = self._heard
            self._heard = None
            return heard

    def redirect(self, address: str) -> None:
        """Reach the coordinator at another address from now on; the newest message is sent again.

        Args:
            address: The new one, in gRPC's syntax; that of now changes nothing.
        """
        with self._changed:
            if address == self._address:
                return
            self._address = address
            replies = self._replies
        # The host of the old coordinator may be dead, so that nothing else ends this stream soon.
        if replies is not None:
            replies.cancel()

    def close(self) -> None:
        """Close the stream."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._replies is not None:
            self._replies.cancel()
        self._thread.join(CLOSE_TIMEOUT_S)
        os.close(self._wake)

    def _keep(self) -> None:
        """Keep a stream until closed."""
        with CoordinatorChannel(lambda: self._address, self._credentials) as channel:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, RETRY_S if self._stream else 0)
                    if self._closing:
                        return
                    self._stream += 1
                    self._changed.notify_all()  # the last stream's messages end
                    # Under the lock: a later change of the address finds this stream, and ends it.
                    address = self._address
                    call = self._call(channel.get())
                    self._replies = call(self._outgoing(self._stream), wait_for_ready=True)
                try:
                    for reply in self._replies:
                        self._hear(reply, address)
                except grpc.RpcError as error:  # it broke: the next one repeats everything
                    if status_of(error) in _REFUSED and self._is_refused(error, address):
                        return
                    self._broken_since = self._broken_since or time.monotonic()

    def _is_refused(self, error: grpc.RpcError, address: str) -> bool:
        """Note that a coordinator refuses this client; returns False if it is the one before."""
        with self._changed:
            if address != self._address:
                return False
            self._refusal = f"the coordinator at {address} refuses this agent: {details_of(error)}"
            os.eventfd_write(self._wake, 1)
            return True

    def _hear(self, message: Incoming, address: str) -> None:
        with self._changed:
            if address != self._address:
                return  # it is of the coordinator before
            if self._heard is None and not self._closing:
                os.eventfd_write(self._wake, 1)
            self._heard = message
            self._broken_since = None

    def _outgoing(self, stream: int) -> Iterator[Outgoing]:
        """The messages for one stream, until it ends."""
        sent = 0
        while (news := self._await_news(stream, sent)) is not None:
            sent, message = news
            yield message

    def _await_news(self, stream: int, sent: int) -> tuple[int, Outgoing] | None:
        """The message to send on a stream after number `sent`; None once it is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or self._stream != stream or self._said[0] > sent
            )
            number, message = self._said
            over = self._closing or self._stream != stream
            return None if over or message is None else (number, message)
