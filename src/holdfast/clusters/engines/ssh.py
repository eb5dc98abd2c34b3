"""SshEngine: agents on the hosts of a file, each below an ssh of this host.

    reserve   every host is asked what it has free, all at once
    start     ssh HOST PYTHON -m holdfast agent …, on a free host
    places    the exits of these commands

An agent ends with its ssh: its standard input is closed then.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.clusters.engines import hosts_file
from holdfast.clusters.engines.command_agents import CommandAgents
from holdfast.clusters.engines.engine import Launch, ResourceRequest
from holdfast.clusters.engines.hosts_file import SshHost
from holdfast.clusters.engines.own_wheel import version_of_code
from holdfast.clusters.engines.remote_host import LOST, SSH, address_of, facts_of

SET_UP: Final = "make it ready by `holdfast hosts setup FILE`"
END_S: Final = 3.0
"""Time that the agents of a run that was killed just now may take to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """Supply of a host.

    Attributes:
        host: The host.
        slots: Number of agents that fit there now.
        lacks: Why no more do, in words.
        is_in_use: True if that is due to other runs.
    """

    host: SshHost
    slots: int
    lacks: str
    is_in_use: bool = False


class SshEngine(CommandAgents):
    """Places the agents of one run on hosts with sshd and Python.

    Args:
        where: The path of the hosts file.

    Raises:
        JobError: The file is wrong.
        EngineError: This host has no ssh.
    """

    name = "ssh"

    def __init__(self, where: str) -> None:
        super().__init__(LOST)
        self._hosts = {host.name: host for host in hosts_file.read(Path(where))}
        self.num_hosts = len(self._hosts)
        self.peer = address_of(next(iter(self._hosts.values())))

    def reserve(self, ask: ResourceRequest) -> str:
        """Implements `Engine.reserve`."""
        answers = self._answers(ask)
        if _num_slots(answers) < ask.agents and any(each.is_in_use for each in answers):
            time.sleep(END_S)
            answers = self._answers(ask)
        if (found := _num_slots(answers)) < ask.agents:
            why = "".join(f"; {each.host.name} {each.lacks}" for each in answers if each.lacks)
            ready = all(each.is_in_use or not each.lacks for each in answers)
            advice = "" if ready else f"; {SET_UP}"
            needs = "1 slot for an agent" if ask.agents == 1 else f"{ask.agents} slots for agents"
            return f"{needs}; its hosts have {found}{why}{advice}"
        self.use(
            _spread({each.host.name: each.slots for each in answers}),
            _spread({each.host.name: each.host.slots - each.slots for each in answers}),
        )
        return ""

    def _answers(self, ask: ResourceRequest) -> list[_Answer]:
        check = partial(_check, ask=ask, version=version_of_code())
        hosts = self._hosts.values()
        with ThreadPoolExecutor(len(hosts)) as pool:
            return list(pool.map(check, hosts))

    def words(self, host: str, launch: Launch) -> list[str]:
        """Implements `CommandAgents.words`."""
        python = self._hosts[host].python
        agent = shlex.join([python, "-m", "holdfast", *launch.arguments])
        return [*SSH, "--", host, f"exec {agent}"]


def _num_slots(answers: Sequence[_Answer]) -> int:
    return sum(each.slots for each in answers)


def _spread(slots: Mapping[str, int]) -> list[str]:
    """The name of a host for each of its slots; every host once before any host twice."""
    most = max(slots.values(), default=0)
    return [host for turn in range(most) for host, number in slots.items() if number > turn]


def _check(host: SshHost, ask: ResourceRequest, version: str) -> _Answer:
    """Ask a host how many agents it can run."""
    facts = facts_of(host)
    most = min(host.slots, ask.agents)
    if isinstance(facts, str):
        return _Answer(host=host, slots=0, lacks=facts)
    for agents in range(1, most + 1):
        needs = replace(ask.needs, workers=agents * ask.workers)
        if lacks := facts.lacks(version, needs):
            is_ready = facts.version == version
            is_in_use = is_ready and not any(each.is_final for each in facts.shortages(needs))
            return _Answer(host=host, slots=agents - 1, lacks=lacks, is_in_use=is_in_use)
    return _Answer(host=host, slots=host.slots, lacks="")
