"""Events that the state machines of the coordinator and of an agent handle.

Events of different processes come in any order: a machine compares generations and numbers, and
ignores what is older.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.protocol import (
    CheckpointPart,
    CheckpointResult,
    DesiredState,
    Draft,
    Eviction,
    Failure,
    Status,
    StoredCheckpoint,
)

# Events of the coordinator. A probe and a tick may also be an agent's.


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """An agent has sent its status."""

    status: Status


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an agent broke; it may come back."""

    host: str


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The engine that started this agent knows that it will not come back."""

    host: str


@dataclass(frozen=True, slots=True)
class StopReceived:
    """The user asks the run to end after the current step, or at once."""

    at_once: bool = False


@dataclass(frozen=True, slots=True)
class ScaleRequested:
    """The user asks for another number of workers, which the run can have."""

    workers: int


@dataclass(frozen=True, slots=True)
class ProgressRequested:
    """A command shows the run's progress from now on."""


@dataclass(frozen=True, slots=True)
class ProbeCompleted:
    """A host has accepted a connection of a probe, or has not."""

    number: int
    is_reached: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


RunEvent = (
    StatusReceived
    | Disconnected
    | AgentLost
    | StopReceived
    | ScaleRequested
    | ProgressRequested
    | ProbeCompleted
    | Tick
)


# Events of an agent: of the coordinator, its workers, its disk and its user.


@dataclass(frozen=True, slots=True)
class DesiredStateReceived:
    """The coordinator has sent the desired state."""

    desired: DesiredState


@dataclass(frozen=True, slots=True)
class WorkerHalted:
    """A worker has halted in a generation.

    Attributes:
        committed: Steps that are committed in its replica; None if it has no state.
        reduced_step: Defined in `Status`.
        address: Address at which it accepts connections of other hosts.
        numerics: Defined in `Status`.
        left: Steps committed in the state that the worker before it has left; None if it has left
            none that is whole.
    """

    rank: int
    generation: int
    committed: int | None
    reduced_step: int
    address: str = ""
    numerics: Mapping[str, str] = field(default_factory=dict)
    left: int | None = None


@dataclass(frozen=True, slots=True)
class PartStaged:
    """A worker has staged its part of a checkpoint in a generation."""

    rank: int
    generation: int
    part: CheckpointPart


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """The newest checkpoint of this host that can be read now; None if there is none."""

    generation: int
    checkpoint: StoredCheckpoint | None


@dataclass(frozen=True, slots=True)
class CheckpointPrepared:
    """The parts of a checkpoint are durable on this host, or could not be written."""

    generation: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """A checkpoint was published on this host, or not."""

    result: CheckpointResult


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker has reached the end of the run in a generation."""

    rank: int
    generation: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker process has exited."""

    rank: int
    process: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class EvictionRequested:
    """The workers of a generation have found one that slows them down."""

    generation: int
    eviction: Eviction


@dataclass(frozen=True, slots=True)
class WorkerFit:
    """A worker on standby is fast again."""

    rank: int


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """This host is about to leave the run: its user or its engine says so."""


CheckpointEvent = CheckpointFound | CheckpointPrepared | CheckpointCompleted


@dataclass(frozen=True, slots=True)
class PeerReported:
    """A worker does not get what it waits for from a worker of another host.

    Attributes:
        generation: In which it waits.
        peer: The rank of the other.
        is_broken: True if their connection has broken.
    """

    generation: int
    peer: int
    is_broken: bool


AgentEvent = (
    DesiredStateReceived
    | WorkerHalted
    | PartStaged
    | CheckpointEvent
    | WorkerFinished
    | WorkerExited
    | EvictionRequested
    | WorkerFit
    | LeaveRequested
    | PeerReported
    | ProbeCompleted
    | Tick
)
