"""Host: an agent of a run, as the run's supervisor sees it, whatever placed it where it is.

    STARTING ──▶ UP ──▶ LEFT   the run is over, and the agent ended as requested
        └─────────┴───▶ LOST   the agent is gone: the supervisor replaces the host

The evidence of a loss: the exit statuses of child processes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import HasFileno


class HostState(enum.Enum):
    """State of a host in its life; see the module."""

    STARTING = "starting"
    UP = "up"
    LEFT = "left"
    LOST = "lost"


class HostHandle(Protocol):
    """One agent and its workers."""

    @property
    def name(self) -> str:
        """The agent's name, which is never used again in the run."""

    def sources(self) -> Iterable[HasFileno]:
        """Sources that are readable when the state may have changed."""

    def state(self) -> HostState:
        """Look where the host is, and have it start workers as soon as it can.

        Raises:
            HoldfastError: It takes too long to start.
        """

    def lose(self) -> None:
        """Note that the host is lost, and release what it held.

        Raises:
            HoldfastError: Another host would not do better, or hosts are lost too often.
        """

    def close(self) -> None:
        """End the agent; returns when none of its workers is left."""
