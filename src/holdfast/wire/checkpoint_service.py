"""The service that moves whole checkpoints between the coordinator's host and the others.

    host ── Offer: CheckpointMessage ─────▶ coordinator    (whether to send it)
         ◀──────── OfferedMessage ─────────
         ── Send:  bytes … ───────────────▶                (see `checkpoint.transfer`)
         ◀──────── OfferedMessage ─────────
         ── Fetch: CheckpointMessage ─────▶                (one that the job's answer has named)
         ◀──────── bytes … ────────────────

No path crosses the wire: a checkpoint is named by its step and the digest of its content.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final

import grpc
from pydantic import Field

from holdfast.wire.messages import Message

_SERVICE: Final = "holdfast.Checkpoints"
_MIN_TIMEOUT_S: Final = 60.0
_MIN_BYTES_PER_S: Final = 4 << 20


class CheckpointMessage(Message):
    """A checkpoint.

    Attributes:
        step: Its step.
        content_sha256: Defined in `Manifest`.
        size_bytes: Size of its state.
    """

    step: int = Field(ge=0)
    content_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)


class OfferResult(enum.StrEnum):
    """Answer of the coordinator to a checkpoint that a host has."""

    STORED = "stored"
    """It has this one, or a newer one."""
    SEND = "send"
    """It expects this host to send it now."""
    LATER = "later"
    """Another host is sending one; offer the newest one again."""
    NO_SPACE = "no-space"
    """Its disk has too little space."""


class OfferedMessage(Message):
    """The answer to an offer, or to a checkpoint that was sent."""

    result: OfferResult


class CheckpointService:
    """The methods of a coordinator.

    Args:
        channel: To a coordinator; see `rpc.open_channel`.

    Attributes:
        offer: Takes a message, returns the answer.
        send: Takes an iterator of pieces, returns the answer.
        fetch: Takes a message, returns an iterator of pieces.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.offer: grpc.UnaryUnaryMultiCallable[CheckpointMessage, OfferedMessage] = (
            channel.unary_unary(f"/{_SERVICE}/Offer", _dump, OfferedMessage.model_validate_json)
        )
        self.send: grpc.StreamUnaryMultiCallable[bytes, OfferedMessage] = channel.stream_unary(
            f"/{_SERVICE}/Send", None, OfferedMessage.model_validate_json
        )
        self.fetch: grpc.UnaryStreamMultiCallable[CheckpointMessage, bytes] = channel.unary_stream(
            f"/{_SERVICE}/Fetch", _dump, None
        )


def checkpoint_handlers(
    offer: Callable[..., Any], send: Callable[..., Any], fetch: Callable[..., Any]
) -> grpc.GenericRpcHandler:
    """The handlers of a server: coroutines that take a message or an iterator of pieces, and a
    context; the last one is an asynchronous generator of pieces.
    """
    parse = CheckpointMessage.model_validate_json
    offered: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Offer": grpc.unary_unary_rpc_method_handler(offer, parse, _dump),
        "Send": grpc.stream_unary_rpc_method_handler(send, None, _dump),
        "Fetch": grpc.unary_stream_rpc_method_handler(fetch, parse, None),
    }
    return grpc.method_handlers_generic_handler(_SERVICE, offered)


def transfer_timeout_s(size_bytes: int) -> float:
    """Time that sending or writing a checkpoint with a state of so many bytes may take, seconds."""
    return _MIN_TIMEOUT_S + size_bytes / _MIN_BYTES_PER_S


def _dump(message: Message) -> bytes:
    return message.model_dump_json().encode()
