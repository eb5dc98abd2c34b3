"""Fleet: the agents of one run that an engine places on the hosts of a cluster.

    engine ── places ─▶ fleet ── lost agents ─▶ coordinator
           ◀─ start ──

The agents join as those do that a person starts: with a token, which each of them reads from its
standard input.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.clusters.engines.engine import Engine, Launch
from holdfast.coordinator import tokens
from holdfast.coordinator.authority import Authority
from holdfast.core.placement.replacing import AgentPlace, PlaceState, Replacing
from holdfast.errors import HoldfastError
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import SECRETS
from holdfast.runs.coordinator_process import CoordinatorProcess
from holdfast.runs.hosts.hosts import LAST_STATE_S

if TYPE_CHECKING:
    from _typeshed import HasFileno

_UP: Final = (PlaceState.RUNNING, PlaceState.DRAINING)


class Fleet:
    """The agents of one run.

    Args:
        engine: Places them.
        agents: Number that the run needs.
        run_dir: The run's directory.
        public: Address at which they join.
        coordinator: The run's coordinator.
        log: The run's log of events.
    """

    def __init__(
        self,
        engine: Engine,
        agents: int,
        run_dir: Path,
        public: str,
        coordinator: CoordinatorProcess,
        log: EventLog,
    ) -> None:
        self._engine = engine
        self._coordinator = coordinator
        self._log = log
        self._run_dir = run_dir
        self._public = public
        self._replacing = Replacing(agents)
        self._places: Mapping[str, AgentPlace] = {}
        self._has_begun = False
        self._last_cause = ""
        self._start_missing()

    @property
    def doing(self) -> str:
        """Implements `Hosts.doing`."""
        waiting = [each for each in self._places.values() if each.state is PlaceState.PENDING]
        return f"{len(waiting)} agents waited for {self._engine.name}" if waiting else ""

    def sources(self) -> Iterable[HasFileno]:
        """Implements `Hosts.sources`."""
        return (self._engine,)

    def have_begun(self) -> bool:
        """Implements `Hosts.have_begun`."""
        return self._has_begun

    def replace_lost(self) -> None:
        """Implements `Hosts.replace_lost`."""
        ended = self._look()
        # If all have ended well, the run is over, as the coordinator is about to say.
        have_left = ended and all(place.succeeded for place in ended.values())
        if have_left and self._coordinator.await_end(LAST_STATE_S):
            return
        # The engine knows of an end at once; the coordinator alone would wait for heartbeats.
        for name in ended:
            self._coordinator.report_lost(name)
        if self._replacing.has_given_up:
            raise HoldfastError(
                f"agents end as soon as {self._engine.name} has started them: {self._last_cause}; "
                f"see logs/agent-*.log in {self._run_dir}, and resume the run once that is fixed"
            )
        self._start_missing()
        for name in self._replacing.to_stop(self._places, time.monotonic(), time.time()):
            self._engine.stop(name)

    def are_up(self) -> bool:
        """Implements `Hosts.are_up`."""
        self._look()
        return any(place.state in _UP for place in self._places.values())

    def leave(self) -> None:
        """Implements `Hosts.leave`."""

    def close(self) -> None:
        """Implements `Hosts.close`."""
        for name, place in self._places.items():
            if place.state is not PlaceState.ENDED:
                self._engine.stop(name)

    def _look(self) -> Mapping[str, AgentPlace]:
        """Look where the agents are, and log what has changed; returns those that have ended."""
        before = self._places
        self._places = self._engine.places()
        for name, place in self._places.items():
            known = before.get(name)
            if known is None or known.state is not place.state:
                self._log_state(name, place)
        self._has_begun |= any(place.state in _UP for place in self._places.values())
        return self._replacing.look(self._places, time.monotonic())

    def _log_state(self, name: str, place: AgentPlace) -> None:
        match place.state:
            case PlaceState.RUNNING:
                self._log.event("agent-placed", host=name, place=place.host)
            case PlaceState.DRAINING:
                deadline = place.deadline_unix_s
                self._log.event(
                    "agent-draining", host=name, place=place.host, deadline_unix_s=deadline
                )
            case PlaceState.ENDED if not place.succeeded:
                self._last_cause = place.cause
                self._log.event("agent-ended", host=name, place=place.host, cause=place.cause)
            case _:
                pass

    def _start_missing(self) -> None:
        for name in self._replacing.missing(time.monotonic()):
            self._engine.start(self._launch(name))

    def _launch(self, name: str) -> Launch:
        folder = self._run_dir / SECRETS
        token = tokens.issue(folder, Authority.load(folder), time.time())
        join = ("agent", "--join", self._public, "--placed", name)
        return Launch(name=name, arguments=join, token=token.text)
