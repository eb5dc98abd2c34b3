"""Replacing: which agents to start for those that an engine has lost.

    wanted agents ─▶ one ends, or its host will be taken away ─▶ start another, with a new name

An agent whose host will be taken away is stopped before that, and as soon as its successor has had
time to join: the others then lose it at once, and not by its silence.

An agent that ends soon after it was started may do so again: the next one waits, longer each time,
and after MAX_EARLY_ENDS of them in a row the run gives up.

A host that can reach the coordinator, and not the other members, would stop the others each time it
joins. So one that is fenced soon after it joined waits before it joins again, longer each time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

EARLY_S: Final = 30.0
"""An agent that ends this soon after its start has served for nothing, seconds."""
MAX_EARLY_ENDS: Final = 5
JOIN_S: Final = 15.0
"""Time that an agent takes to join, with all that it imports, seconds."""
MARGIN_S: Final = 3.0
"""Time from the stop of an agent until its host is taken away, seconds."""
MIN_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 30.0


class PlaceState(enum.Enum):
    """Stage of an agent's life, as its engine knows it."""

    PENDING = "pending"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlace:
    """State and host of an agent.

    Attributes:
        state: Stage of its life.
        host: Name of its host for the engine; empty while it has none.
        cause: Cause of its end, in words.
        succeeded: True if it ended by itself, because the run is over.
        deadline_unix_s: Time at which the host is taken away from it, if that is known.
    """

    state: PlaceState
    host: str = ""
    cause: str = ""
    succeeded: bool = False
    deadline_unix_s: float | None = None


class Replacing:
    """The agents of one run.

    Args:
        wanted: Number of agents that the run needs.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._started: dict[str, float] = {}  # those that have not ended, and when they started
        self._leaving: dict[str, float] = {}  # and since when
        self._number = 0
        self._early_ends = 0
        self._resume_at = 0.0

    def missing(self, now: float) -> list[str]:
        """The names of the agents to start now.

        Args:
            now: Monotonic seconds.
        """
        if now < self._resume_at:
            return []
        # One whose host will be taken away is replaced before it ends.
        staying = len(self._started) - len(self._leaving)
        names = [f"agent-{self._number + each + 1}" for each in range(self._wanted - staying)]
        self._number += len(names)
        self._started |= dict.fromkeys(names, now)
        return names

    def look(self, places: Mapping[str, AgentPlace], now: float) -> dict[str, AgentPlace]:
        """Take note of where agents are; returns those that have ended since the last look."""
        ended = {
            name: place
            for name, place in places.items()
            if place.state is PlaceState.ENDED and name in self._started
        }
        for name in ended:
            self._end(name, now)
        for name, place in places.items():
            if place.state is PlaceState.DRAINING and name in self._started:
                self._leaving.setdefault(name, now)
        return ended

    def to_stop(self, places: Mapping[str, AgentPlace], now: float, unix_s: float) -> list[str]:
        """The names of the agents to stop now, because their hosts will be taken away.

        Args:
            places: State and host of each agent.
            now: Monotonic seconds.
            unix_s: Unix time of the same moment, seconds.
        """
        staying = [
            name
            for name, place in places.items()
            if place.state is PlaceState.RUNNING and name not in self._leaving
        ]
        # A leaving agent is stopped once its successor has joined, at the latest at the deadline.
        have_successors = len(staying) >= self._wanted
        return [
            name
            for name, since in self._leaving.items()
            if (have_successors and now > since + JOIN_S)
            or unix_s > (places[name].deadline_unix_s or math.inf) - MARGIN_S
        ]

    @property
    def has_given_up(self) -> bool:
        """True if agents end as soon as they are started."""
        return self._early_ends >= MAX_EARLY_ENDS

    def _end(self, name: str, now: float) -> None:
        # The first early end may be chance: only those in a row delay the next start.
        is_early = now - self._started.pop(name) < EARLY_S
        self._leaving.pop(name, None)
        self._early_ends = self._early_ends + 1 if is_early else 0
        if self._early_ends > 1:
            self._resume_at = now + min(MIN_DELAY_S * 2 ** (self._early_ends - 2), MAX_DELAY_S)


MIN_REJOIN_DELAY_S: Final = 5.0
MAX_REJOIN_DELAY_S: Final = 60.0
SOON_S: Final = 20.0
"""A host that cannot reach others is fenced this soon: it starts its workers, and they report."""


class RejoinDelay:
    """The delays of one host."""

    def __init__(self) -> None:
        self._delay_s = 0.0

    def after(self, served_s: float) -> float:
        """Time to wait now, seconds.

        Args:
            served_s: Time that the host took part since it joined, seconds.
        """
        longer_s = min(max(MIN_REJOIN_DELAY_S, 2 * self._delay_s), MAX_REJOIN_DELAY_S)
        self._delay_s = longer_s if served_s < SOON_S else 0.0
        return self._delay_s
