"""CommandAgents: the agents of one run at slots of known hosts, each below a command of this host.

    start ─▶ WAITING ─▶ a slot is free ─▶ its command runs ─▶ the agent says that it is placed
                ▲                               │                         │
                └── the host is not reached ────┘                         ▼
                                                     the command ends: the agent has ended

A slot whose host was not reached, or was lost, is tried again after all others. So is one where an
agent could not begin, or has left because the run is over. So an agent waits while no host can be
reached, and the run continues without it.
"""

from __future__ import annotations

import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from holdfast.clusters.engines.agent_command import AgentCommand
from holdfast.clusters.engines.engine import Launch
from holdfast.core.placement.replacing import EARLY_S, AgentPlace, PlaceState
from holdfast.errors import EngineError

RETRY_S: Final = 5.0
"""Time for which a host that was lost is left alone."""
WAIT_S: Final = 2 * EARLY_S
"""Time that an agent waits for a host. Then another one does, whose token is valid for longer."""
END_TIMEOUT_S: Final = 15.0
_PENDING: Final = AgentPlace(state=PlaceState.PENDING)


@dataclass(slots=True, kw_only=True)
class Slot:
    """Space for one agent.

    Attributes:
        host: The host, as the command names it.
        usable_at: Time at which it can be tried again, monotonic seconds; 0 for a host never lost.
        is_lost: True if the cluster manager says that the host is lost.
        deadline_unix_s: Unix time at which the host is taken away, if the cluster manager says so.
    """

    host: str
    usable_at: float = 0.0
    is_lost: bool = False
    deadline_unix_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Agent:
    """One agent.

    Attributes:
        launch: Request that started it.
        began: Time of the start, monotonic seconds.
        slot, command: Slot and process; None while it waits for a slot.
        place: Name of its host, for the run.
        cause: Why it could not be placed the last time.
    """

    launch: Launch
    began: float
    slot: Slot | None = None
    command: AgentCommand | None = None
    place: AgentPlace = _PENDING
    cause: str = ""


class CommandAgents(ABC):
    """The part of an engine that has the agents of one run.

    Args:
        lost_status: The exit status by which a command says that the host is not reached.
        noise: Part of the lines that a command adds to what an agent says at its end.
    """

    def __init__(self, lost_status: int | None = None, noise: str = "") -> None:
        self._lost_status = lost_status
        self._noise = noise
        self._slots: list[Slot] = []
        self._agents: dict[str, _Agent] = {}
        self._news = select.epoll()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._news.register(self._woken, select.EPOLLIN)

    @abstractmethod
    def words(self, host: str, launch: Launch) -> list[str]:
        """The command that runs an agent at a host."""

    def use(self, hosts: Sequence[str], lost: Sequence[str] = ()) -> None:
        """Use these slots, each named by its host, and later those of the hosts in `lost`."""
        later = time.monotonic() + RETRY_S
        self._slots = [Slot(host=host) for host in hosts]
        self._slots += [Slot(host=host, usable_at=later) for host in lost]

    def start(self, launch: Launch) -> None:
        """Implements `Engine.start`."""
        self._agents[launch.name] = _Agent(launch=launch, began=time.monotonic())
        self._fill_slots()

    def stop(self, name: str) -> None:
        """Implements `Engine.stop`."""
        agent = self._agents[name]
        if agent.command is not None:
            agent.command.stop()
        elif agent.place.state is PlaceState.PENDING:
            agent.place = AgentPlace(state=PlaceState.ENDED, succeeded=True)

    def places(self) -> Mapping[str, AgentPlace]:
        """Implements `Engine.places`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        for agent in self._agents.values():
            if agent.command is not None and agent.slot is not None:
                self._look(agent, agent.command, agent.slot)
            elif agent.place.state is PlaceState.PENDING:
                self._give_up_late(agent)
        self._fill_slots()
        return {name: agent.place for name, agent in self._agents.items()}

    def lose(self, hosts: Mapping[str, str]) -> None:
        """Note which hosts the cluster manager has lost, and why; the others are there."""
        for slot in self._slots:
            slot.is_lost = slot.host in hosts
        for agent in self._agents.values():
            if agent.command is not None and agent.slot is not None and agent.slot.is_lost:
                agent.command.stop()
                agent.command.end(0.0)
                self._lose(agent, agent.slot, hosts[agent.slot.host])

    def add(self, hosts: Sequence[str]) -> None:
        """Use these hosts, too, one slot of each."""
        known = {slot.host for slot in self._slots}
        self._slots += [Slot(host=host) for host in hosts if host not in known]

    def drain(self, deadlines: Mapping[str, float]) -> None:
        """Note when which hosts will be taken away, Unix seconds; the others stay."""
        for slot in self._slots:
            slot.deadline_unix_s = deadlines.get(slot.host)

    def wake(self) -> None:
        """Make `fileno` readable; any thread may do this."""
        os.eventfd_write(self._woken, 1)

    def fileno(self) -> int:
        """Implements `Engine.fileno`."""
        return self._news.fileno()

    def close(self) -> None:
        """Implements `Engine.close`."""
        commands = [agent.command for agent in self._agents.values() if agent.command is not None]
        for command in commands:
            command.stop()
        deadline = time.monotonic() + END_TIMEOUT_S
        for command in commands:
            command.end(max(0.0, deadline - time.monotonic()))
        self._news.close()
        os.close(self._woken)

    def _look(self, agent: _Agent, command: AgentCommand, slot: Slot) -> None:
        """Look where an agent is now."""
        status = command.look()
        if status is not None and status == self._lost_status:
            self._lose(agent, slot, command.last_line(self._noise))
        elif status is not None:
            if command.is_over or not command.is_placed:  # there is no run to join, or no way
                slot.usable_at = time.monotonic() + RETRY_S
            said = command.last_line(self._noise)
            line = f": {said}" if said else ""
            cause = f"the agent on {slot.host} ended with status {status}{line}"
            self._end(agent, "" if command.is_over else cause)
        elif command.is_taken_away or slot.deadline_unix_s is not None:
            deadline = slot.deadline_unix_s
            agent.place = AgentPlace(
                state=PlaceState.DRAINING, host=slot.host, deadline_unix_s=deadline
            )
        elif command.is_placed:
            agent.place = AgentPlace(state=PlaceState.RUNNING, host=slot.host)

    def _lose(self, agent: _Agent, slot: Slot, line: str) -> None:
        """The agent's host was lost, or not reached."""
        now = time.monotonic()
        slot.usable_at = now + RETRY_S
        cause = f"{slot.host}: {line}"
        if agent.place.state is not PlaceState.PENDING:
            self._end(agent, f"the host is lost: {cause}")
            return
        agent.slot = agent.command = None
        agent.cause = cause

    def _give_up_late(self, agent: _Agent) -> None:
        waited_s = time.monotonic() - agent.began
        if waited_s > WAIT_S:
            cause = agent.cause or "all hosts are in use or lost"
            self._end(agent, f"no host was free within {waited_s:.0f} s; the last one: {cause}")

    def _end(self, agent: _Agent, cause: str) -> None:
        host = agent.slot.host if agent.slot else ""
        agent.place = AgentPlace(
            state=PlaceState.ENDED, host=host, cause=cause, succeeded=not cause
        )
        agent.slot = agent.command = None

    def _fill_slots(self) -> None:
        """Start the commands of the agents that wait, as far as slots are free."""
        taken = [id(agent.slot) for agent in self._agents.values()]
        usable = [slot for slot in self._slots if not slot.is_lost and slot.deadline_unix_s is None]
        free = sorted(
            (slot for slot in usable if id(slot) not in taken), key=lambda slot: slot.usable_at
        )
        waiting = [
            agent
            for agent in self._agents.values()
            if agent.place.state is PlaceState.PENDING and agent.slot is None
        ]
        for agent, slot in zip(waiting, free, strict=False):
            if slot.usable_at > time.monotonic():
                break
            words = self.words(slot.host, agent.launch)
            try:
                agent.command = AgentCommand(words, agent.launch.token, self._news)
            except OSError as error:
                raise EngineError(
                    f"{words[0]} cannot be run: {error.strerror}; install it on this host"
                ) from None
            agent.slot = slot
