"""SshEngine: agents on the hosts of a file, each below an ssh of this host.

    reserve   every host is asked what it has, all at once
    start     ssh HOST PYTHON -m holdfast agent …, on a free host
    places    the exits of these commands

An agent ends with its ssh: its standard input is closed then.
"""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.engines import hosts_file
from holdfast.engines.command_agents import CommandAgents
from holdfast.engines.engine import Ask, Launch
from holdfast.engines.hosts_file import SshHost
from holdfast.engines.own_wheel import version_of_code
from holdfast.engines.remote_host import LOST, SSH, address_of, facts_of

SET_UP: Final = "make it ready by `holdfast hosts setup FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a host has, or what it lacks."""

    host: SshHost
    lacks: str = ""


class SshEngine:
    """Places the agents of one run on hosts with sshd and Python.

    Args:
        where: The path of the hosts file.

    Raises:
        JobError: The file is wrong.
        EngineError: This host has no ssh.
    """

    name = "ssh"

    def __init__(self, where: str) -> None:
        self._hosts = {host.name: host for host in hosts_file.read(Path(where))}
        self.peer = address_of(next(iter(self._hosts.values())))
        self._agents = CommandAgents(self._words, LOST)
        self.start, self.stop = self._agents.start, self._agents.stop
        self.places, self.fileno = self._agents.places, self._agents.fileno
        self.close = self._agents.close

    def reserve(self, ask: Ask) -> str:
        """See `Engine.reserve`."""
        check, hosts = partial(_check, ask=ask, version=version_of_code()), self._hosts.values()
        with ThreadPoolExecutor(len(hosts)) as pool:
            answers = list(pool.map(check, hosts))
        good = [answer.host for answer in answers if not answer.lacks]
        slots = _slots(good)
        if len(slots) < ask.agents:
            lacking = "".join(f"; {each.host.name} {each.lacks}" for each in answers if each.lacks)
            return f"{ask.agents} slots for agents; its hosts have {len(slots)}{lacking}; {SET_UP}"
        self._agents.use(slots, _slots([answer.host for answer in answers if answer.lacks]))
        return ""

    def _words(self, host: str, launch: Launch) -> list[str]:
        python = self._hosts[host].python
        agent = shlex.join([python, "-m", "holdfast", *launch.arguments])
        return [*SSH, "--", host, f"exec {agent}"]


def _slots(hosts: list[SshHost]) -> list[str]:
    """The name of a host for each of its slots; every host once before any host twice."""
    most = max((host.slots for host in hosts), default=0)
    return [host.name for turn in range(most) for host in hosts if host.slots > turn]


def _check(host: SshHost, ask: Ask, version: str) -> _Answer:
    """Ask a host whether it can run its agents."""
    facts, needs = facts_of(host), ask.of_agent.times(min(host.slots, ask.agents))
    lacks = facts if isinstance(facts, str) else facts.lacks(version, needs)
    return _Answer(host=host, lacks=lacks)
