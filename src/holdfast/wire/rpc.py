"""The coordinator's service: gRPC, with our own messages as JSON in place of generated code.

    agent    ── Attend: StatusMessage ──────▶ coordinator
             ◀───────── DesiredStateMessage ──
    command  ── Watch:  RunRequestMessage ──▶
             ◀───────── RunStateMessage ──────
    host     ── Join:   JoinMessage ────────▶
             ◀───────── JoinedMessage ────────

Every message contains the whole state, so only the newest of each kind counts, and on a new stream
it is sent again. Each end validates what it reads. docs/decisions/0013 says why there is no .proto.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import grpc

from holdfast.core.protocol import DesiredState, Failure, Stage, Status, WorkerProgress
from holdfast.wire.messages import Message

SERVICE: Final = "holdfast.Coordinator"
TOKEN_KEY: Final = "holdfast-token"  # noqa: S105  # its name
"""The metadata of a call in which an agent of another host sends its token."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    # Both ends notice within seconds that the other is gone without closing the stream.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # A restarted coordinator is back within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # despite its name: how long one try may take
    ("grpc.max_reconnect_backoff_ms", 100),
)


class StatusMessage(Message):
    """The status of an agent."""

    status: Status


class DesiredStateMessage(Message):
    """The desired state of an agent.

    Attributes:
        key: See `ResumeMessage`.
    """

    desired: DesiredState
    key: str = ""


class RunRequestMessage(Message):
    """What the command that started a run requests, and what it knows."""

    stop: bool = False
    """Whether the run must end after the current step."""
    lost: tuple[str, ...] = ()
    """Agents that will not come back."""
    watch: bool = False
    """Whether the command shows the run's progress."""


class RunStateMessage(Message):
    """The state of a run; see `core.coordinator.CoordinatorStateMachine`."""

    stage: Stage
    reason: str
    root_cause: tuple[int, Failure] | None
    result: dict[str, Any] | None
    waiting_for: str = ""
    """What has to happen before the run can make progress, in words; empty if nothing has."""
    progress: Mapping[int, WorkerProgress] = {}
    """How far each member has come, by rank."""


class JoinMessage(Message):
    """A host asks to take part in a run."""

    hostname: str


class JoinedMessage(Message):
    """What an agent of another host must know.

    Attributes:
        name: Its name, never used before in the run.
        attempt: The id of this start of the run.
        run_dir: The run's directory, on a disk that all hosts share.
    """

    name: str
    attempt: str
    run_dir: str


class Service:
    """The methods of a coordinator.

    Args:
        channel: To a coordinator.
        token: Lets another host in.

    Attributes:
        attend, watch: Take an iterator of messages to send, return one of the answers.
        join: Takes a message, returns the answer.
    """

    def __init__(self, channel: grpc.Channel, token: str = "") -> None:
        metadata = ((TOKEN_KEY, token),) if token else ()
        attend = channel.stream_stream(
            f"/{SERVICE}/Attend", _dump, DesiredStateMessage.model_validate_json
        )
        self.attend = partial(attend, metadata=metadata)
        join = channel.unary_unary(f"/{SERVICE}/Join", _dump, JoinedMessage.model_validate_json)
        self.join = partial(join, metadata=metadata)
        self.watch: grpc.StreamStreamMultiCallable[RunRequestMessage, RunStateMessage] = (
            channel.stream_stream(f"/{SERVICE}/Watch", _dump, RunStateMessage.model_validate_json)
        )


def handlers(
    attend: Callable[..., Any], watch: Callable[..., Any], join: Callable[..., Any]
) -> grpc.GenericRpcHandler:
    """The handlers of a server: asynchronous generators, given the messages and a context, and a
    coroutine that answers one message.
    """
    offered: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Attend": grpc.stream_stream_rpc_method_handler(
            attend, StatusMessage.model_validate_json, _dump
        ),
        "Watch": grpc.stream_stream_rpc_method_handler(
            watch, RunRequestMessage.model_validate_json, _dump
        ),
        "Join": grpc.unary_unary_rpc_method_handler(join, JoinMessage.model_validate_json, _dump),
    }
    return grpc.method_handlers_generic_handler(SERVICE, offered)


def status_of(error: grpc.RpcError) -> grpc.StatusCode | None:
    """The status of a call that has failed; None if it has none."""
    code: Callable[[], grpc.StatusCode] | None = getattr(error, "code", None)
    return None if code is None else code()


def _dump(message: Message) -> bytes:
    return message.model_dump_json().encode()
