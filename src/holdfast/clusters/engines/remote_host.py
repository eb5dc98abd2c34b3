"""A host that ssh reaches: running commands there, and asking what it has.

It is the system's ssh, so the user's configuration, keys and jump hosts count.
"""

from __future__ import annotations

import shlex
import subprocess
from typing import IO, Final

from pydantic import ValidationError

from holdfast.clusters.engines.host_facts import HostFacts
from holdfast.clusters.engines.hosts_file import SshHost
from holdfast.errors import EngineError

CHECK_S: Final = 30.0
"""Time that a host may take to say what it has."""
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


def run_on(
    host: SshHost, command: str, timeout_s: float, source: IO[bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command on a host.

    Args:
        host: The host.
        command: For its shell.
        timeout_s: Time limit; after it, its status is that of a host that is not reached.
        source: Input of the command; by default none.

    Raises:
        EngineError: This host has no ssh.
    """
    words = [*SSH, "--", host.name, command]
    try:
        return subprocess.run(
            words,
            check=False,
            capture_output=True,
            text=True,
            stdin=source or subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        said = f"no end of a command within {timeout_s:.0f} s"
        return subprocess.CompletedProcess(words, LOST, stdout="", stderr=said)
    except OSError as error:
        raise EngineError(f"ssh cannot be run: {error.strerror}; install openssh-client") from None


def facts_of(host: SshHost) -> HostFacts | str:
    """Supply of a host, or words for why it does not say that."""
    command = shlex.join([host.python, "-m", "holdfast.clusters.engines.host_facts"])
    done = run_on(host, f"exec {command}", CHECK_S)
    last = last_line(done.stderr) or f"status {done.returncode}"
    if done.returncode == LOST:
        return f"cannot be reached: {last}"
    if "No module named" in done.stderr:
        return f"has no holdfast of this version: {host.python}: {last}"
    if done.returncode:
        return f"has no usable Python: {last}"
    try:
        return HostFacts.model_validate_json(last_line(done.stdout))
    except ValidationError:
        return f"has answered {done.stdout!r:.80}; check {host.python}"


def address_of(host: SshHost) -> str:
    """Address to which ssh connects for a host, by its configuration.

    Raises:
        EngineError: This host has no ssh.
    """
    words = [SSH[0], "-G", "--", host.name]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=CHECK_S)
    except OSError as error:
        raise EngineError(f"ssh cannot be run: {error.strerror}; install openssh-client") from None
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    found = (line[1] for line in lines if line[0] == "hostname" and len(line) == 2)
    return next(found, host.name)


def last_line(text: str) -> str:
    """The last line of a text; empty if it has none."""
    return (text.strip().splitlines() or [""])[-1]
