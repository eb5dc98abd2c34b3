"""The messages between a command, its fork server, an agent and its workers, all on one host.

    command ── Prepare, Attach ─────────▶ fork server
            ◀─ Ready, WorkersReaped ─────
    agent ── Fork ──────────────────────▶ fork server ── (forks) ──▶ worker
          ◀─ Ready, Forked, Exited ──────                         or writer
    agent ── Staging, WritePart, DeleteOld ─▶ writer
          ◀─ PartWritten ────────────────────
    agent ◀─ Halted, Staging, PartStaged, CheckpointRejected ─────────── worker
          ◀─ PeerUnreachable, Evict, Fit, Finished, Failed ──────────────
          ── Resume, CheckpointResult, Shutdown ─────────────────────────▶
          ◀─ OpenTunnel, Memory ─────────────────────────────────────────
          ── TunnelOpened, Memory of others ─────────────────────────────▶

They are pydantic models: what a process reads is validated before it is used.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from holdfast.core.failures import Report
from holdfast.core.protocol import CheckpointPart, Eviction
from holdfast.job.settings import Program


class Message(BaseModel):
    """The base of all messages: immutable, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class ForkMessage(Message):
    """Fork a worker with `config`. Comes with its descriptors: the arena, its socket to the agent,
    its log.
    """

    kind: Literal["fork"] = "fork"
    rank: int
    config: str


class PrepareMessage(Message):
    """Import the modules of the references, which every fork would import; or first restart with
    environment variables that libraries read when they are loaded.
    """

    kind: Literal["prepare"] = "prepare"
    imports: tuple[str, ...] = ()
    program: Program | None = None
    """The program of the job whose modules these are."""
    variables: dict[str, str] = {}
    code: tuple[str, str] | None = None
    """Name and content, in base64, of a task that comes by value; see `tasks.by_value`."""


class ReadyMessage(Message):
    """The fork server has imported what was requested."""

    kind: Literal["ready"] = "ready"


class AttachMessage(Message):
    """Fork for an agent. Comes with a socket to it; when that closes, its workers are killed."""

    kind: Literal["attach"] = "attach"


class WorkersReapedMessage(Message):
    """An agent has exited, and all of its workers were reaped."""

    kind: Literal["workers-reaped"] = "workers-reaped"


class ForkedMessage(Message):
    """A process was forked. Comes with its pidfd."""

    kind: Literal["forked"] = "forked"
    rank: int
    pid: int


class ForkControlMessage(Message):
    """Fork a coordinator or an agent; see `launch.forked.ControlProcess`. Comes with descriptors:
    for its output, a pipe for its exit status, and those that it inherits.
    """

    kind: Literal["fork-control"] = "fork-control"
    module: str
    words: tuple[str, ...]
    environment: dict[str, str] = Field(repr=False)
    directory: str
    numbers: tuple[int, ...] = ()
    """Numbers of the descriptors that it inherits, as it knows them."""


class ControlForkedMessage(Message):
    """A coordinator or an agent was forked. Comes with its pidfd."""

    kind: Literal["control-forked"] = "control-forked"
    pid: int


class ExitedMessage(Message):
    """A forked process has exited."""

    kind: Literal["exited"] = "exited"
    rank: int
    pid: int
    status: int
    """Its exit status; the negative number of the signal that killed it."""


class HaltedMessage(Message):
    """A worker has halted in `generation`, with `committed` steps; None if it has no state."""

    kind: Literal["halted"] = "halted"
    rank: int
    generation: int
    committed: int | None
    address: str = ""
    """Address at which it accepts connections of workers on other hosts."""
    numerics: dict[str, str] = {}
    """Facts that decide the bits of its results; see `worker.checks.numerics`."""
    left: int | None = None
    """Steps committed in the state that the worker before it has left on its device, whole."""


class MemoryMessage(Message):
    """Device memory of a worker, which others map. Comes with its descriptor."""

    kind: Literal["memory"] = "memory"
    rank: int


class ResumeMessage(Message):
    """All members have halted: resume; or stay on standby meanwhile."""

    kind: Literal["resume"] = "resume"
    generation: int
    members: tuple[int, ...]
    """The ranks of the generation, in order."""
    step: int
    donors: dict[int, int]
    """The rank whose replica each takes its state from; empty if no rank has a state."""
    restore: tuple[str, ...]
    """Names of this host's checkpoints for that case, newest first; empty begins the run."""
    hosts: tuple[tuple[int, ...], ...] = ()
    """The ranks of each host, if there are several."""
    addresses: dict[int, str] = {}
    """Address at which the worker of each rank accepts connections, if there are several hosts."""
    key: str = ""
    """Secret of the generation's members, hexadecimal."""
    caps: dict[int, int] = {}
    """The most shards of a step of each rank that has run out of memory."""
    standby: Eviction | None = None
    """Cause of this worker's standby; None for a member."""


class LoopbackAddress(Message):
    """Address of a process group: a loopback address that is another one for each host."""

    address: Annotated[str, Field(pattern=r"^127\.77\.\d{1,3}\.1$")]
    port: Annotated[int, Field(ge=1, le=65535)]


class Route(Message):
    """Way to a process group of another host."""

    to: LoopbackAddress
    tunnel: str
    """The address of the other agent's tunnel."""


class OpenTunnelMessage(Message):
    """Carry connections of process groups between hosts; see `agent.tunnel`."""

    kind: Literal["open-tunnel"] = "open-tunnel"
    generation: int
    exposed: tuple[LoopbackAddress, ...]
    """Address at which workers of this host listen."""
    routes: tuple[Route, ...]
    """Address at which workers of other hosts listen."""


class TunnelOpenedMessage(Message):
    """The answer to it."""

    kind: Literal["tunnel-opened"] = "tunnel-opened"
    generation: int
    error: str = ""


class ShutdownMessage(Message):
    """The run is over for this worker."""

    kind: Literal["shutdown"] = "shutdown"


class PartStagedMessage(Message):
    """A worker has staged its part of a checkpoint, or could not."""

    kind: Literal["part-staged"] = "part-staged"
    generation: int
    part: CheckpointPart


class StagingMessage(Message):
    """A range of the arena in which checkpoints will be staged."""

    kind: Literal["staging"] = "staging"
    offset: int
    size_bytes: int


class WritePartMessage(Message):
    """Write a staged state into a draft, as one part.

    Attributes:
        draft: The name of the draft.
        offset: Start of the state in the arena's file, bytes.
        size_bytes: Its size.
        entries: Name, dtype, shape in memory and offset of each tensor in it.
    """

    kind: Literal["write-part"] = "write-part"
    draft: str
    offset: int
    size_bytes: int
    entries: tuple[tuple[str, str, tuple[int, ...], int], ...]


class DeleteOldMessage(Message):
    """Verify the newest checkpoints and delete older ones, in the background."""

    kind: Literal["delete-old"] = "delete-old"


class PartWrittenMessage(Message):
    """The part is durable, and this is its file's entry in the manifest; or why it is not.

    Attributes:
        file: Defined in `PartFile`.
        staged_digests: Defined in `WrittenPart`.
        error: Cause for which it is not; else empty.
    """

    kind: Literal["part-written"] = "part-written"
    file: dict[str, Any] = {}
    staged_digests: tuple[str, ...] = ()
    error: str = ""


class CheckpointResultMessage(Message):
    """The result of the checkpoint with this number in its generation."""

    kind: Literal["checkpoint-result"] = "checkpoint-result"
    number: int
    error: str


class PeerUnreachableMessage(Message):
    """A worker does not get what it waits for from one of another host; see `PeerReported`."""

    kind: Literal["peer-unreachable"] = "peer-unreachable"
    generation: int
    peer: int
    is_broken: bool


class EvictMessage(Message):
    """The workers of a generation have found one that slows them down."""

    kind: Literal["evict"] = "evict"
    generation: int
    eviction: Eviction


class FitMessage(Message):
    """A worker on standby is fast again."""

    kind: Literal["fit"] = "fit"
    rank: int


class CheckpointRejectedMessage(Message):
    """A checkpoint failed its verification on some worker and was skipped by all."""

    kind: Literal["checkpoint-rejected"] = "checkpoint-rejected"
    rank: int
    directory: str
    reason: str


class FinishedMessage(Message):
    """A worker's function has returned, and its state is durable."""

    kind: Literal["finished"] = "finished"
    rank: int
    generation: int
    result: dict[str, Any]


class FailedMessage(Message):
    """A worker's function has raised."""

    kind: Literal["failed"] = "failed"
    rank: int
    report: Report


AnyMessage = Annotated[
    ForkMessage | PrepareMessage | ReadyMessage | AttachMessage | WorkersReapedMessage
    | ForkedMessage | ExitedMessage | HaltedMessage | ResumeMessage | ShutdownMessage
    | MemoryMessage
    | StagingMessage | PartStagedMessage | CheckpointResultMessage | CheckpointRejectedMessage
    | WritePartMessage | PartWrittenMessage | DeleteOldMessage
    | PeerUnreachableMessage | EvictMessage | FitMessage
    | ForkControlMessage | ControlForkedMessage
    | FinishedMessage | FailedMessage | OpenTunnelMessage | TunnelOpenedMessage,
    Field(discriminator="kind"),
]  # fmt: skip

ADAPTER: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)
