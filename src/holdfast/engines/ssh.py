"""SshEngine: agents on the hosts of a file, each below an ssh of this host.

    reserve   every host is asked what it has, all at once
    start     ssh HOST PYTHON -m holdfast agent …, on a free host
    places    the exits of these commands

It is the system's ssh, so the user's configuration, keys and jump hosts count. An agent ends with
its ssh: its standard input is closed then.
"""

from __future__ import annotations

import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from rich.filesize import decimal as in_words

from holdfast.engines import hosts_file
from holdfast.engines.command_agents import CommandAgents
from holdfast.engines.engine import Ask, Launch
from holdfast.engines.host_facts import HostFacts
from holdfast.engines.hosts_file import SshHost
from holdfast.errors import EngineError

CHECK_S: Final = 30.0
"""How long a host may take to say what it has."""
LOST: Final = 255
"""The exit status of ssh when it fails itself."""
SSH: Final = (
    "ssh",
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "ServerAliveInterval=2"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ControlPath=none"),  # a connection for each agent, which fails alone
    *("-o", "ClearAllForwardings=yes"),
)


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
        self.peer = _address(next(iter(self._hosts)))
        self._agents = CommandAgents(self._words, LOST)
        self.start, self.stop = self._agents.start, self._agents.stop
        self.places, self.fileno = self._agents.places, self._agents.fileno
        self.close = self._agents.close

    def reserve(self, ask: Ask) -> str:
        """See `Engine.reserve`."""
        with ThreadPoolExecutor(len(self._hosts)) as pool:
            answers = list(pool.map(lambda host: _check(host, ask), self._hosts.values()))
        good = [answer.host for answer in answers if not answer.lacks]
        slots = _slots(good)
        if len(slots) < ask.agents:
            lacking = "".join(f"; {each.host.name} {each.lacks}" for each in answers if each.lacks)
            return f"{ask.agents} slots for agents; its hosts have {len(slots)}{lacking}"
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


def _check(host: SshHost, ask: Ask) -> _Answer:
    """Ask a host whether it can run its agents."""
    command = shlex.join([host.python, "-m", "holdfast.engines.host_facts"])
    try:
        done = subprocess.run(
            [*SSH, "--", host.name, f"exec {command}"],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=CHECK_S,
        )
    except subprocess.TimeoutExpired:
        return _Answer(host=host, lacks=f"has not answered within {CHECK_S:.0f} s")
    if done.returncode:
        return _Answer(host=host, lacks=_failure(host, done.returncode, done.stderr))
    try:
        facts = HostFacts.model_validate_json((done.stdout.strip().splitlines() or [""])[-1])
    except ValidationError:
        return _Answer(host=host, lacks=f"has answered {done.stdout!r:.80}; check {host.python}")
    return _Answer(host=host, lacks=_lacks(host, facts, HostFacts.here().version, ask))


def _failure(host: SshHost, status: int, printed: str) -> str:
    last = (printed.strip().splitlines() or [f"status {status}"])[-1]
    if status == LOST:
        return f"cannot be reached: {last}"
    if "No module named" in printed:
        return f"has no holdfast of this version: {host.python}: {last}; install it there"
    return f"has no usable Python: {last}; give the path of one by python=PATH in the hosts file"


def _lacks(host: SshHost, facts: HostFacts, version: str, ask: Ask) -> str:
    """What a host lacks for as many agents as it has slots; nothing if they fit."""
    needs = ask.of_agent.times(min(host.slots, ask.agents))
    if facts.version != version:
        return f"has holdfast {facts.version}, this host {version}; install the same one"
    if facts.cpus < needs.cpus:
        return f"has {facts.cpus} CPU cores, its agents need {needs.cpus}"
    if facts.gpus < needs.gpus:
        return f"has {facts.gpus} GPUs, its agents need {needs.gpus}"
    if facts.memory_bytes < needs.memory_bytes:
        return (
            f"has {in_words(facts.memory_bytes)} of memory available, its agents need "
            f"{in_words(needs.memory_bytes)}"
        )
    return ""


def _address(host: str) -> str:
    """Where ssh connects for a host, by its configuration."""
    try:
        done = subprocess.run(
            [SSH[0], "-G", "--", host],
            check=False,
            capture_output=True,
            text=True,
            timeout=CHECK_S,
        )
    except OSError as error:
        raise EngineError(f"ssh cannot be run: {error.strerror}; install openssh-client") from None
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return next((line[1] for line in lines if line[0] == "hostname" and len(line) == 2), host)
