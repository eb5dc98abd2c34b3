"""CoordinatorChannel: the gRPC channel to a coordinator that may move to another host.

    stream of an agent, logs, checkpoints ── a call ─▶ channel ─▶ the present address

Each of these clients has a thread with a channel of its own, and looks at the address before a
call. If it has changed, the old channel is closed, and its calls end. The host there may be dead,
so nothing else would end them soon.

A call that is under way looks at intervals whether its answer is of use (`answer_of`). If the
coordinator has moved, the client gives it up and repeats it at the new address. That does no harm
if the old coordinator has done it already: a message has the whole state of its sender, or names
the place in a log or the content that it carries.

A coordinator that is started again at the same address needs none of this: gRPC connects again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self, TypeVar

import grpc

from holdfast.wire.rpc import open_channel
from holdfast.wire.tls import Credentials

LOOK_S: Final = 0.1
"""Interval at which a call that is under way looks whether it is over."""

Answer = TypeVar("Answer")


class CoordinatorChannel:
    """The channel to the coordinator at its present address; used by one thread.

    Args:
        address: Returns the present address, in gRPC's syntax.
        credentials: Defined in `open_channel`.
    """

    def __init__(self, address: Callable[[], str], credentials: Credentials | None) -> None:
        self._address = address
        self._credentials = credentials
        self._opened = ""
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def get(self) -> grpc.Channel:
        """The channel. One to an earlier address is closed, which cancels the calls on it."""
        address = self._address()
        if self._channel is None or address != self._opened:
            self._close()
            self._channel = open_channel(address, self._credentials)
            self._opened = address
        return self._channel

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def answer_of(call: grpc.Future[Answer], is_over: Callable[[], bool]) -> Answer:
    """Wait for the answer to a call.

    Args:
        call: The call, which has a timeout of its own.
        is_over: Returns True if the answer is of no use any more: the call is then cancelled.

    Raises:
        RpcError: The call has failed.
        FutureCancelledError: It was cancelled.
    """
    while True:
        try:
            return call.result(timeout=LOOK_S)
        except grpc.FutureTimeoutError:
            # The next turn raises that the call was cancelled, unless it is answered just now.
            if is_over():
                call.cancel()
