"""Hosts: what a run's supervisor keeps going: its own host, a fleet, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.runs.coordinator_process import CoordinatorProcess
from holdfast.runs.hosts.host import HostHandle, HostState
from holdfast.runs.hosts.local import LocalHosts

if TYPE_CHECKING:
    from _typeshed import HasFileno

LAST_STATE_S: Final = 5.0
"""How long after the end of an agent that left as told the run may still be said to be over."""


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

    def are_up(self) -> bool:
        """True while any host has not ended."""

    def close(self) -> None:
        """End the hosts; returns when nothing that they have started is left."""


class OwnHost:
    """The supervisor's own host. An agent that is lost takes its workers with it: the host in its
    place has another name.

    Args:
        starter: Starts it.
        coordinator: The run's coordinator.
    """

    def __init__(self, starter: LocalHosts, coordinator: CoordinatorProcess) -> None:
        self._starter = starter
        self._coordinator = coordinator
        self._number = 0
        self._has_begun = False
        self._host = self._start()

    @property
    def doing(self) -> str:
        """Implements `Hosts.doing`."""
        return self._starter.doing

    def sources(self) -> Iterable[HasFileno]:
        """Implements `Hosts.sources`."""
        return self._host.sources()

    def have_begun(self) -> bool:
        """Implements `Hosts.have_begun`."""
        return self._has_begun

    def replace_lost(self) -> None:
        """Implements `Hosts.replace_lost`."""
        state = self._host.state()
        self._has_begun |= state is HostState.UP
        if state is HostState.LEFT and self._coordinator.await_end(LAST_STATE_S):
            return
        if state in (HostState.LEFT, HostState.LOST):
            self._host.lose()
            self._coordinator.report_lost(self._host.name)
            self._host = self._start()

    def are_up(self) -> bool:
        """Implements `Hosts.are_up`."""
        return self._host.state() is HostState.UP

    def close(self) -> None:
        """Implements `Hosts.close`."""
        with suppress(HoldfastError):  # the run has ended as it has
            self._host.close()

    def _start(self) -> HostHandle:
        self._number += 1
        return self._starter.start_host(f"local-{self._number}", self._coordinator.address)


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

    def are_up(self) -> bool:
        """Implements `Hosts.are_up`."""
        return self._coordinator.is_awaited

    def close(self) -> None:
        """Implements `Hosts.close`."""
