"""What the machines ask their shells for, and the facts that must outlive the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.protocol import (
    CheckpointResult,
    DesiredState,
    Failure,
    Part,
    ResumePoint,
    Status,
)


@dataclass(frozen=True, slots=True)
class GenerationOpened:
    """A generation has begun.

    Attributes:
        generation: Its number.
        members: The host of every rank.
        anew: Whether none of its workers may be of an older generation.
    """

    generation: int
    members: Mapping[int, str]
    restart_all: bool = False


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over.

    Attributes:
        reason: Why it failed, if it did.
        culprit: The rank that failed last, and how, if that was why.
        result: What a worker reports of it, if all have finished.
    """

    reason: str
    root_cause: tuple[int, Failure] | None = None
    result: Mapping[str, Any] | None = None


JournalEntry = GenerationOpened | RunEnded


@dataclass(frozen=True, slots=True)
class AppendToJournal:
    """Make a fact durable before any later action is performed."""

    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class SendDesiredState:
    """Give an agent its orders."""

    host: str
    desired: DesiredState


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """Commit the parts of all members as a checkpoint; `CheckpointCompleted` is its result."""

    generation: int
    number: int
    step: int
    parts: Mapping[int, Part]


@dataclass(frozen=True, slots=True)
class RemovePartialCheckpoints:
    """Remove what was being written in generations that are over: nobody writes now."""


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Find the newest readable checkpoint; `CheckpointFound` is its result."""


RunAction = (
    AppendToJournal
    | SendDesiredState
    | CommitCheckpoint
    | FindCheckpoint
    | RemovePartialCheckpoints
)


@dataclass(frozen=True, slots=True)
class Abort:
    """Wake all workers out of their waits: generations before this one are over."""

    generation: int


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Start a worker, which parks in `generation`; `process` is to name it in `Exited`."""

    rank: int
    generation: int
    process: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker process at once."""

    rank: int
    process: int


@dataclass(frozen=True, slots=True)
class ResumeWorkers:
    """Let the parked workers go on."""

    generation: int
    start: ResumePoint


@dataclass(frozen=True, slots=True)
class SendCheckpointResult:
    """Tell the workers how their checkpoint went."""

    result: CheckpointResult


@dataclass(frozen=True, slots=True)
class RequestSave:
    """Ask the workers for a checkpoint after the step in hand; see `core.protocol.Orders`."""

    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class RequestStop:
    """Ask the workers to end after the step in hand."""


@dataclass(frozen=True, slots=True)
class SendStatus:
    """Tell the coordinator."""

    status: Status


@dataclass(frozen=True, slots=True)
class ShutDownAgent:
    """End the agent; its workers have been ended, or have finished and leave by themselves."""

    reason: str


AgentAction = (
    Abort
    | ForkWorker
    | KillWorker
    | ResumeWorkers
    | SendCheckpointResult
    | RequestSave
    | RequestStop
    | SendStatus
    | ShutDownAgent
)
