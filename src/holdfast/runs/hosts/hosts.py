"""Hosts: agents of a run, as its supervisor sees them, and what it keeps going: its own host, a
fleet, or nothing.

    STARTING ──▶ UP ──▶ LEFT   the run is over, and the agent ended as requested
        └─────────┴───▶ LOST   the agent is gone: the supervisor replaces the host

The evidence of a loss: the exit statuses of child processes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from holdfast.runs.coordinator_process import CoordinatorProcess

LAST_STATE_S: Final = 5.0
"""Time after the end of an agent that left as told in which the run may be said to be over."""


class HostState(enum.Enum):
    """State of a host in its life; see the module."""

    STARTING = "starting"
    UP = "up"
    LEFT = "left"
    LOST = "lost"


class Hosts(Protocol):
    """The hosts that the supervisor of one run starts and replaces."""

    @property
    def doing(self) -> str:
        """Words for what a host that starts waits for; empty if nothing."""

    def sources(self) -> Iterable[HasFileno]:
        """Sources that are readable when there is news of a host."""

    def have_begun(self) -> bool:
        """True if any host has come up."""

    def replace_lost(self) -> None:
        """Tell the coordinator of the hosts that are lost, and start others.

        Raises:
            HoldfastError: Others would not do better, or hosts are lost too often.
        """

    def leave(self) -> None:
        """Have the host of this process leave the run, if it has workers; repeated until it has."""

    def are_up(self) -> bool:
        """True while any host has not ended."""

    def close(self) -> None:
        """End the hosts; returns when nothing that they have started is left."""


class JoiningHosts:
    """Hosts that others start and replace: they join, and what the coordinator knows of them is
    all that is known here.

    Args:
        coordinator: The run's coordinator.
    """

    doing = ""

    def __init__(self, coordinator: CoordinatorProcess) -> None:
        self._coordinator = coordinator

    def sources(self) -> Iterable[HasFileno]:
        """Implements `Hosts.sources`."""
        return ()

    def have_begun(self) -> bool:
        """Implements `Hosts.have_begun`."""
        return self._coordinator.has_begun

    def replace_lost(self) -> None:
        """Implements `Hosts.replace_lost`."""

    def leave(self) -> None:
        """Implements `Hosts.leave`."""

    def are_up(self) -> bool:
        """Implements `Hosts.are_up`."""
        return self._coordinator.is_awaited

    def close(self) -> None:
        """Implements `Hosts.close`."""
