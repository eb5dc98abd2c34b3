"""The messages between a command, its fork server, an agent and its workers, all on one host.

    command ── Prepare, Attach ──▶ fork server
            ◀─ Ready, Vacated ────
    agent ── Fork ─────────────────▶ fork server ── (forks) ──▶ worker
          ◀─ Ready, Forked, Exited ─
    agent ◀─ Parked, Wrote, Refused, Finished, Failed ── worker
          ── Release, CheckpointDone, Leave ──────────────────────────────▶

They are pydantic models: what a process reads is checked before it acts on it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from holdfast.core.failures import Report
from holdfast.core.protocol import Part


class Message(BaseModel):
    """What all messages have in common: immutable, and closed to fields unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class ForkMessage(Message):
    """Fork a worker with `config`. Comes with the descriptors for it: the arena, its socket to
    the agent, its log.
    """

    kind: Literal["fork"] = "fork"
    rank: int
    config: str


class PrepareMessage(Message):
    """Import what the references name, as every fork would have to; or first start again with
    environment variables that libraries read when they are loaded.
    """

    kind: Literal["prepare"] = "prepare"
    imports: tuple[str, ...] = ()
    variables: dict[str, str] = {}


class ReadyMessage(Message):
    """The fork server has imported what it was asked to."""

    kind: Literal["ready"] = "ready"


class AttachMessage(Message):
    """Fork for an agent. Comes with a socket to it, whose end is the end of its workers."""

    kind: Literal["attach"] = "attach"


class WorkersReapedMessage(Message):
    """An agent has left, and none of its workers is left."""

    kind: Literal["workers-reaped"] = "workers-reaped"


class ForkedMessage(Message):
    """A process was forked. Comes with its pidfd."""

    kind: Literal["forked"] = "forked"
    rank: int
    pid: int


class ExitedMessage(Message):
    """A forked process has ended."""

    kind: Literal["exited"] = "exited"
    rank: int
    pid: int
    status: int
    """Its exit status; the negative number of the signal that killed it."""


class HaltedMessage(Message):
    """A worker stands still in `generation`, with `committed` steps behind it if it has a state."""

    kind: Literal["halted"] = "halted"
    rank: int
    generation: int
    committed: int | None


class ResumeMessage(Message):
    """All stand still: go on."""

    kind: Literal["resume"] = "resume"
    generation: int
    members: tuple[int, ...]
    """The ranks that take part, in order."""
    step: int
    donors: dict[int, int]
    """From whose replica each takes its state; empty where nobody has any."""
    restore: tuple[str, ...]
    """Names of this host's checkpoints for that case, newest first; empty begins the run."""


class ShutdownMessage(Message):
    """The run is over for this worker."""

    kind: Literal["shutdown"] = "shutdown"


class PartWrittenMessage(Message):
    """A worker's part of a checkpoint is on the disk, or cannot be."""

    kind: Literal["part-written"] = "part-written"
    generation: int
    part: Part


class CheckpointResultMessage(Message):
    """The checkpoint with this number in its generation is committed, or why it is not."""

    kind: Literal["checkpoint-result"] = "checkpoint-result"
    number: int
    error: str


class CheckpointRejectedMessage(Message):
    """A checkpoint failed its verification on some worker and was passed over by all."""

    kind: Literal["checkpoint-rejected"] = "checkpoint-rejected"
    rank: int
    directory: str
    reason: str


class FinishedMessage(Message):
    """A worker's function has returned and its state is durable."""

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
    | PartWrittenMessage | CheckpointResultMessage | CheckpointRejectedMessage
    | FinishedMessage | FailedMessage,
    Field(discriminator="kind"),
]  # fmt: skip

ADAPTER: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)
