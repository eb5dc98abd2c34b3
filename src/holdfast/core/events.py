"""What can happen: to the coordinator, and to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.protocol import (
    CheckpointResult,
    DesiredState,
    Failure,
    Part,
    Status,
    StoredCheckpoint,
)


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """An agent has said how it is."""

    status: Status


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an agent is gone; it may come back."""

    host: str


@dataclass(frozen=True, slots=True)
class AgentLost:
    """Whoever runs this agent knows that it is gone for good."""

    host: str


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """A checkpoint is committed, or cannot be."""

    result: CheckpointResult


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """The newest checkpoint that can be read now; None if there is none."""

    checkpoint: StoredCheckpoint | None


@dataclass(frozen=True, slots=True)
class StopReceived:
    """The user wants the run to end after the step in hand."""


@dataclass(frozen=True, slots=True)
class ProgressRequested:
    """A command shows the run's progress from now on."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


RunEvent = (
    StatusReceived
    | Disconnected
    | AgentLost
    | CheckpointCompleted
    | CheckpointFound
    | StopReceived
    | ProgressRequested
    | Tick
)


@dataclass(frozen=True, slots=True)
class DesiredStateReceived:
    """The coordinator has said how things should be."""

    desired: DesiredState


@dataclass(frozen=True, slots=True)
class WorkerHalted:
    """A worker stands still in a generation.

    Attributes:
        rank, generation: Which, and where.
        committed: Steps that its replica has behind it; None if it has none.
        rooted: As in `Status`.
    """

    rank: int
    generation: int
    committed: int | None
    reduced_step: int


@dataclass(frozen=True, slots=True)
class PartWritten:
    """A worker has done its part of a checkpoint in a generation."""

    rank: int
    generation: int
    part: Part


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker has come to the end of the run in a generation, and reports this of it."""

    rank: int
    generation: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker process is gone, whoever ended it."""

    rank: int
    process: int
    failure: Failure


AgentEvent = (
    DesiredStateReceived | WorkerHalted | PartWritten | WorkerFinished | WorkerExited | Tick
)
