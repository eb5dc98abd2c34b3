"""What can happen: to the coordinator, and to an agent."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.protocol import Failure, Orders, Status


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent has said how it is."""

    status: Status


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an agent is gone; it may come back."""

    host: str


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint that all ranks verified is durable."""

    step: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the run to end after the step in hand."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


RunEvent = Reported | Disconnected | CheckpointCommitted | StopAsked | Tick


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection to the coordinator is there: the first, or another after one that is gone."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """The coordinator has said how things should be."""

    orders: Orders


@dataclass(frozen=True, slots=True)
class Parked:
    """A worker stands still in a generation.

    Attributes:
        rank, generation: Which, and where.
        committed: Steps that its replica has behind it; None if it has none.
        rooted: As in `Status`.
    """

    rank: int
    generation: int
    committed: int | None
    rooted: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker has come to the end of the run in a generation."""

    rank: int
    generation: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process is gone, whoever ended it."""

    rank: int
    process: int
    failure: Failure


AgentEvent = Connected | Ordered | Parked | Finished | Exited | Tick
