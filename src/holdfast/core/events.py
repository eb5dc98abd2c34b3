"""What can happen: to the coordinator, and to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.protocol import Failure, Orders, Part, Status, Verdict


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent has said how it is."""

    status: Status


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an agent is gone; it may come back."""

    host: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Whoever runs this agent knows that it is gone for good."""

    host: str


@dataclass(frozen=True, slots=True)
class Settled:
    """A checkpoint is committed, or cannot be."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the run to end after the step in hand."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline may have passed."""


RunEvent = Reported | Disconnected | Lost | Settled | StopAsked | Tick


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
class Wrote:
    """A worker has done its part of a checkpoint in a generation."""

    rank: int
    generation: int
    part: Part


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker has come to the end of the run in a generation, and reports this of it."""

    rank: int
    generation: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process is gone, whoever ended it."""

    rank: int
    process: int
    failure: Failure


AgentEvent = Ordered | Parked | Wrote | Finished | Exited | Tick
