"""The coordinator's service: gRPC, with our own messages as JSON in place of generated code.

    agent    ── Attend: StatusMessage ──────▶ coordinator
             ◀───────── DesiredStateMessage ──
    command  ── Watch:  RunRequestMessage ──▶
             ◀───────── RunStateMessage ──────
             ── Scale:  ScaleMessage ───────▶
             ◀───────── ScaledMessage ────────
    host     ── FetchJob: FetchJobMessage ──▶
             ◀─────────── JobMessage ─────────
             ── Ship: ShipMessage ──────────▶
             ◀─────── ShippedMessage ────────

Agents of other hosts show a certificate (`wire.tls`); processes of the coordinator's host use a
Unix socket that only its owner can open.

Every message contains the whole state, so only the newest of each kind counts, and on a new stream
it is sent again. Each end validates what it reads. docs/decisions/0013 says why there is no .proto.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import grpc
from pydantic import Field

from holdfast.core.code_version import UNKNOWN, CodeVersion
from holdfast.core.protocol import DesiredState, Failure, ResumePoint, Stage, Status, WorkerProgress
from holdfast.wire.checkpoint_service import CheckpointMessage
from holdfast.wire.messages import Message
from holdfast.wire.tls import Credentials

SERVICE: Final = "holdfast.Coordinator"
SERVER_NAME: Final = "coordinator"
"""The host name in the coordinator's certificate, whatever its address is."""
MAX_SHIPPED_BYTES: Final = 64 << 10
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
    """The status of an agent.

    Attributes:
        status: The status.
        node: Name of its host in the consensus about the coordinator; empty if it takes no part.
    """

    status: Status
    node: str = Field(default="", max_length=300)


class DesiredStateMessage(Message):
    """The desired state of an agent.

    Attributes:
        key: Defined in `ResumeMessage`.
    """

    desired: DesiredState
    key: str = ""


class _SharedMessage(Message):
    """Values of a desired state that are the same for all agents, and grow with their number."""

    members: Mapping[int, str]
    addresses: Mapping[int, str]
    resume_point: ResumePoint | None


class DesiredStateEncoder:
    """Encodes desired states: a line of what all agents share, and one of what is an agent's own.

    A generation of a thousand hosts has tens of kilobytes of the first, which is encoded once.
    """

    def __init__(self) -> None:
        self._shared: tuple[object, ...] | None = None
        self._line = b""

    def encode(self, message: DesiredStateMessage) -> bytes:
        """The bytes of a message; see `load_desired_state`."""
        desired = message.desired
        members = desired.members
        addresses = desired.addresses
        start = desired.resume_point
        shared = (members, addresses, start)
        # The machine never changes these, so that most are the same objects, compared in no time.
        if shared != self._shared:
            self._shared = shared
            self._line = _dump(
                _SharedMessage(members=members, addresses=addresses, resume_point=start)
            )
        own = replace(desired, members={}, addresses={}, resume_point=None)
        return self._line + b"\n" + _dump(message.model_copy(update={"desired": own}))


def load_desired_state(sent: bytes) -> DesiredStateMessage:
    """The message that `DesiredStateEncoder` has encoded.

    Raises:
        ValidationError: It is none.
    """
    line, _, own = sent.partition(b"\n")
    shared = _shared_of(line)
    message = DesiredStateMessage.model_validate_json(own)
    desired = replace(
        message.desired,
        members=shared.members,
        addresses=shared.addresses,
        resume_point=shared.resume_point,
    )
    return message.model_copy(update={"desired": desired})


@lru_cache(maxsize=1)
def _shared_of(line: bytes) -> _SharedMessage:
    """The part of a line that is the same in each answer of a generation."""
    return _SharedMessage.model_validate_json(line)


class RunRequestMessage(Message):
    """Request of the command that started a run, with what it knows."""

    stop: bool = False
    """True if the run must end after the current step."""
    abort: bool = False
    """True if the run must end at once, on all hosts."""
    lost: tuple[str, ...] = ()
    """Agents that will not come back."""
    watch: bool = False
    """True if the command shows the run's progress."""


class RunStateMessage(Message):
    """The state of a run; see `core.coordinator.CoordinatorStateMachine`."""

    stage: Stage
    reason: str
    root_cause: tuple[int, Failure] | None
    result: dict[str, Any] | None
    waiting_for: str = ""
    """Condition without which the run makes no progress, in words; empty if there is none."""
    lacks_workers: bool = False
    """True if the run waits for workers of hosts that have not joined, or are lost."""
    is_receiving: bool = False
    """True if a checkpoint is arriving at the coordinator's host."""
    is_awaited: bool = False
    """True at the end if a host may still have a checkpoint for the coordinator's host."""
    progress: Mapping[int, WorkerProgress] = {}
    """Progress of each member, by rank."""


class FetchJobMessage(Message):
    """A host that has joined asks what it must run.

    Attributes:
        node: Defined in `StatusMessage`: its agent says it only once it has started.
    """

    node: str = Field(default="", max_length=300)


class JobMessage(Message):
    """Job, task and code of a run.

    Attributes:
        run: The name of its directory.
        run_id: Defined in `RunDirectory`.
        job: The job, as YAML.
        code: The sources of its task, as a zip file in base64; see `tasks.code`.
        code_sha256: The digest of the zip file.
        collects: True if the others send metrics and checkpoints to the coordinator's host: it has
            no agent, or may not have the worker that writes the steps.
        moves: True if another host takes over the coordinator if its host is lost.
        checkpoint: The newest one of the coordinator's host, for a host that may be the first of a
            resumed run; None if others have the run's state, or there is none.
        profile: The run's profile, as JSON; empty if it has none.
        code_version: Version of the user's code.
    """

    run: str
    run_id: str = Field(pattern="^[0-9a-f]{16}$")
    job: str
    code: str
    code_sha256: str
    collects: bool = False
    moves: bool = False
    checkpoint: CheckpointMessage | None = None
    profile: str = ""
    code_version: CodeVersion = UNKNOWN


class ShipMessage(Message):
    """Lines that a host has appended to one of its logs.

    Attributes:
        file: The log, relative to the run's directory; or the metrics, or samples of the host.
        offset: Start of the content in it, bytes; of no use for metrics and samples.
        content: At most `MAX_SHIPPED_BYTES`, in base64.
        is_last: True if this host has nothing more to send.
    """

    file: str = Field(max_length=64)
    offset: int = Field(ge=0)
    content: str = Field(max_length=2 * MAX_SHIPPED_BYTES)
    is_last: bool = False


class ShippedMessage(Message):
    """Confirmation that the content sent is in the log of the run."""


class ScaleMessage(Message):
    """Request for another number of workers."""

    workers: int = Field(ge=1)


class ScaledMessage(Message):
    """Confirmation that the run trains with so many workers.

    Attributes:
        before: Workers before.
        step: Steps committed when they began to train.
        refusal: Why it does not, in words; empty if it does.
    """

    before: int = 0
    step: int = 0
    refusal: str = ""


class Service:
    """The methods of a coordinator.

    Args:
        channel: To a coordinator.

    Attributes:
        attend, watch: Take an iterator of messages to send, return one of the answers.
        fetch_job, ship, scale: Take a message, return the answer.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.attend: grpc.StreamStreamMultiCallable[StatusMessage, DesiredStateMessage] = (
            channel.stream_stream(f"/{SERVICE}/Attend", _dump, load_desired_state)
        )
        self.watch: grpc.StreamStreamMultiCallable[RunRequestMessage, RunStateMessage] = (
            channel.stream_stream(f"/{SERVICE}/Watch", _dump, RunStateMessage.model_validate_json)
        )
        self.fetch_job: grpc.UnaryUnaryMultiCallable[FetchJobMessage, JobMessage] = (
            channel.unary_unary(f"/{SERVICE}/FetchJob", _dump, JobMessage.model_validate_json)
        )
        self.ship: grpc.UnaryUnaryMultiCallable[ShipMessage, ShippedMessage] = channel.unary_unary(
            f"/{SERVICE}/Ship", _dump, ShippedMessage.model_validate_json
        )
        self.scale: grpc.UnaryUnaryMultiCallable[ScaleMessage, ScaledMessage] = channel.unary_unary(
            f"/{SERVICE}/Scale", _dump, ScaledMessage.model_validate_json
        )


def open_channel(address: str, credentials: Credentials | None) -> grpc.Channel:
    """A channel to a coordinator.

    Args:
        address: The coordinator's, in gRPC's syntax.
        credentials: Credentials of an agent; None for a Unix socket of this host.
    """
    if credentials is None:
        assert address.startswith("unix:"), f"a connection in plain to {address}"
        return grpc.insecure_channel(address, options=OPTIONS)
    shown = grpc.ssl_channel_credentials(
        credentials.authority.encode(), credentials.key.encode(), credentials.certificate.encode()
    )
    named = ("grpc.ssl_target_name_override", SERVER_NAME)
    return grpc.secure_channel(address, shown, options=(*OPTIONS, named))


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """Credentials of a coordinator, which asks those who connect for a certificate of the run."""
    # True: without a certificate of the run's authority no call begins.
    own = credentials.key.encode(), credentials.certificate.encode()
    return grpc.ssl_server_credentials([own], credentials.authority.encode(), True)


def handlers(
    attend: Callable[..., Any],
    watch: Callable[..., Any],
    fetch_job: Callable[..., Any],
    ship: Callable[..., Any],
    scale: Callable[..., Any],
) -> grpc.GenericRpcHandler:
    """The handlers of a server: two asynchronous generators, given the messages and a context, and
    coroutines that answer one message.
    """
    offered: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Attend": grpc.stream_stream_rpc_method_handler(
            attend, StatusMessage.model_validate_json, DesiredStateEncoder().encode
        ),
        "Watch": grpc.stream_stream_rpc_method_handler(
            watch, RunRequestMessage.model_validate_json, _dump
        ),
        "FetchJob": grpc.unary_unary_rpc_method_handler(
            fetch_job, FetchJobMessage.model_validate_json, _dump
        ),
        "Ship": grpc.unary_unary_rpc_method_handler(ship, ShipMessage.model_validate_json, _dump),
        "Scale": grpc.unary_unary_rpc_method_handler(
            scale, ScaleMessage.model_validate_json, _dump
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, offered)


def status_of(error: grpc.RpcError) -> grpc.StatusCode | None:
    """The status of a call that has failed; None if it has none."""
    code: Callable[[], grpc.StatusCode] | None = getattr(error, "code", None)
    return None if code is None else code()


def details_of(error: grpc.RpcError) -> str:
    """Words of the other end about a call that it has refused."""
    details: Callable[[], str | None] | None = getattr(error, "details", None)
    return (details and details()) or "without a reason"


def _dump(message: Message) -> bytes:
    return message.model_dump_json().encode()
