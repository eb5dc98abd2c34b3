"""CheckpointServer: moves checkpoints between the disk of the coordinator's host and others.

The disk is read and written in threads: the coordinator must answer heartbeats meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final

import grpc

from holdfast.errors import CheckpointError
from holdfast.wire.checkpoint_service import (
    CheckpointMessage,
    OfferedMessage,
    OfferResult,
    checkpoint_handlers,
    transfer_timeout_s,
)

if TYPE_CHECKING:
    from holdfast.coordinator.collected_checkpoints import CollectedCheckpoints

PIECE_TIMEOUT_S: Final = 20.0
"""Time that a host that sends may be silent."""
MAX_FETCHES: Final = 4
"""Hosts that get a checkpoint at a time; the others wait."""


class CheckpointServer:
    """The service of one run.

    Args:
        checkpoints: Checkpoints of the run.
        host_of: Returns the host whose agent makes a call; ends the call if it is none.
        on_change: Called when `CollectedCheckpoints.is_receiving` may have changed.
        on_settled: Called with a host that has nothing more to send, for now.
    """

    def __init__(
        self,
        checkpoints: CollectedCheckpoints,
        host_of: Callable[[Any], Awaitable[str]],
        on_change: Callable[[], None],
        on_settled: Callable[[str], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._host_of = host_of
        self._on_change = on_change
        self._on_settled = on_settled
        self._fetches = asyncio.Semaphore(MAX_FETCHES)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Handlers for a gRPC server."""
        return checkpoint_handlers(self._offer, self._send, self._fetch)

    async def _offer(self, message: CheckpointMessage, context: Any) -> OfferedMessage:
        host = await self._host_of(context)
        result = self._checkpoints.offer(host, message, time.monotonic())
        if result in (OfferResult.STORED, OfferResult.NO_SPACE):
            self._on_settled(host)
        return OfferedMessage(result=result)

    async def _send(self, stream: AsyncIterator[bytes], context: Any) -> OfferedMessage:
        host = await self._host_of(context)
        loop = asyncio.get_running_loop()
        try:
            wanted = self._checkpoints.begin(host)
            self._on_change()
            pulled = _pulled(aiter(stream), loop, transfer_timeout_s(wanted.size_bytes))
            # If the call is cancelled, the thread still writes: no other host may send before it
            # has ended.
            await asyncio.shield(self._received(host, wanted, pulled))
        except (CheckpointError, OSError) as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        self._on_settled(host)
        return OfferedMessage(result=OfferResult.STORED)

    async def _received(
        self, host: str, wanted: CheckpointMessage, pulled: Iterator[bytes]
    ) -> None:
        """Receive a checkpoint. It ends by itself soon after the call has ended."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._checkpoints.receive, host, wanted, pulled)
        finally:
            self._on_change()

    async def _fetch(self, wanted: CheckpointMessage, context: Any) -> AsyncIterator[bytes]:
        await self._host_of(context)
        loop = asyncio.get_running_loop()
        read = self._checkpoints.pieces(wanted)
        async with self._fetches:
            try:
                while piece := await loop.run_in_executor(None, next, read, b""):
                    yield piece
            except (CheckpointError, OSError) as error:
                await context.abort(grpc.StatusCode.ABORTED, str(error))


def _pulled(
    stream: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop, timeout_s: float
) -> Iterator[bytes]:
    """Messages of a stream of the loop, for a thread.

    Args:
        stream: The stream.
        loop: The loop.
        timeout_s: Time that all of it may take.

    Raises:
        CheckpointError: It has ended by an error, is silent, or takes too long.
    """
    ends_at = time.monotonic() + timeout_s

    async def next_piece() -> bytes:
        return await anext(stream, b"")

    # The loop alone may read the stream; the thread has it read one message and waits.
    while True:
        pending = asyncio.run_coroutine_threadsafe(next_piece(), loop)
        try:
            left_s = ends_at - time.monotonic()
            piece = pending.result(min(PIECE_TIMEOUT_S, left_s))
        except (TimeoutError, CancelledError, grpc.RpcError, asyncio.CancelledError):
            pending.cancel()
            raise CheckpointError("the host that sent a checkpoint is gone, or too slow") from None
        if not piece:
            return
        yield piece
