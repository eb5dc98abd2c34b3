"""Gathering: the hosts that an engine has reserved, on each of which a part of a check joins.

reserve, as for a run ─▶ holdfast COMMAND --join … on each host ─▶ a connection to each
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.clusters.engines.engine import Engine, Launch
from holdfast.coordinator import tokens
from holdfast.core.placement.replacing import Place, PlaceState
from holdfast.doctor.finding import Finding, fault
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.meeting import Meeting
from holdfast.doctor.peers.messages import ConclusionMessage, ProfileMessage, WelcomeMessage
from holdfast.errors import HoldfastError
from holdfast.rundir.run_directory import SECRETS
from holdfast.runs.hosts.endpoint import Endpoint

JOIN_TIMEOUT_S: Final = 150.0
"""How long hosts may take to join: an engine gives up an agent that waits for a host before that.
"""
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """How hosts are gathered.

    Attributes:
        command: Of holdfast, which takes a part: `doctor` or `profile`.
        engine: Has reserved the hosts.
        endpoint: Where they join.
        count: How many there are.
        folder: For keys.
        greeting: Called with the name of each host that has joined; what it is to do.
        add: Takes the findings of hosts that do not join.
    """

    command: str
    engine: Engine
    endpoint: Endpoint
    count: int
    folder: Path
    greeting: Callable[[str], WelcomeMessage | ProfileMessage]
    add: Callable[[Finding], None]

    def meeting(self) -> Meeting:
        """Where the hosts join."""
        return Meeting(self.folder, self.endpoint, self.count, lambda *_: None)

    def gather(self, meeting: Meeting) -> dict[str, Line]:
        """Start a part on each host; returns the connections by what the engine calls hosts.

        Raises:
            EngineError: The engine does not answer.
        """
        names = [f"{self.command}-{number + 1}" for number in range(self.count)]
        for name in names:
            self.engine.start(self._launch(name, meeting))
        return self._await_hosts(names, meeting)

    def _launch(self, name: str, meeting: Meeting) -> Launch:
        token = tokens.issue(self.folder / SECRETS, meeting.authority, time.time())
        join = (self.command, "--join", self.endpoint.public, "--placed", name)
        return Launch(name=name, arguments=join, token=token.text)

    def _await_hosts(self, names: Sequence[str], meeting: Meeting) -> dict[str, Line]:
        """Greet each host that joins."""
        hosts: dict[str, Line] = {}
        waiting, deadline = list(names), time.monotonic() + JOIN_TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            meeting.await_hosts(LOOK_S)
            joined = {name.rpartition("-")[0]: line for name, line in meeting.lines.items()}
            for part, place in self._places(waiting):
                if part in joined and place.host:
                    name = unlike(place.host, hosts)
                    hosts[name] = joined[part]
                    self._greet(name, joined[part])
                    waiting.remove(part)
                elif place.state is PlaceState.ENDED:
                    self.add(_not_joined(place, place.cause or "it ended before it joined"))
                    waiting.remove(part)
        for _, place in self._places(waiting):
            self.add(_not_joined(place, f"not there after {JOIN_TIMEOUT_S:.0f} s"))
        return hosts

    def _places(self, names: Sequence[str]) -> list[tuple[str, Place]]:
        places = self.engine.places()
        return [(name, places[name]) for name in names]

    def _greet(self, name: str, line: Line) -> None:
        with suppress(HoldfastError):  # it has gone, so its report is missed
            line.send(self.greeting(name))


def dismiss(lines: Collection[Line]) -> None:
    """Let hosts end their parts."""
    for line in lines:
        with suppress(HoldfastError):
            line.send(ConclusionMessage(findings=(), settings=()))
        line.close()


def unlike(host: str, names: Collection[str]) -> str:
    """A name that no other part has: an engine may place several on one host."""
    numbered = (f"{host}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([host], numbered) if name not in names)


def _not_joined(place: Place, why: str) -> Finding:
    remedy = "look on that host for what holds it up, and check again"
    return replace(fault("hosts", why, remedy), host=place.host)
