"""Makes the hosts of a file ready: an environment of their own with the packages of this process.

asked first ─▶ ready: nothing is changed
    └─▶ venv, if there is none ─▶ wheel of holdfast and constraints by `tar | ssh` ─▶ pip
                                                                                       │
              the host's registry has not all of it: the wheels of all packages ◀──────┤
                                                                                       ▼
                                                                                  asked again
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Final

from holdfast.clusters.engines import own_wheel
from holdfast.clusters.engines.hosts_file import SshHost
from holdfast.clusters.engines.remote_host import facts_of, last_line, run_on
from holdfast.errors import EngineError

INSTALL_S: Final = 1800.0
"""Time that packages may take to travel or to be installed."""
_SENT: Final = "holdfast-setup"
"""Folder of what is sent to a host, in its environment; removed at the end."""
_CONSTRAINTS: Final = "constraints.txt"
_PIP: Final = "-m pip install --quiet --disable-pip-version-check"
_PYTHON: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_NO_REGISTRY: Final = "--no-index --find-links=."
_REGISTRY: Final = "--timeout 5 --retries 0"


@dataclass(slots=True, kw_only=True)
class _Packages:
    """Files that are sent to hosts.

    Attributes:
        folder: Folder in which it is made.
        wheel: Wheel of holdfast.
        version: Version of its code.
    """

    folder: Path
    wheel: Path
    version: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _all: list[Path] = field(default_factory=list)

    def few(self) -> list[Path]:
        """Enough for hosts that have a registry."""
        return [self.wheel, self.folder / _CONSTRAINTS]

    def all(self) -> list[Path]:
        """Setup with the wheels of every package that holdfast needs.

        Raises:
            EngineError: They cannot be loaded.
        """
        constraints = self.folder / _CONSTRAINTS
        with self._lock:
            if not self._all:
                wheels = self.folder / "wheels"
                _download(self.wheel, constraints, wheels)
                self._all = [*sorted(wheels.iterdir()), constraints]
        return self._all


def set_up(hosts: list[SshHost], say: Callable[[str], None]) -> list[str]:
    """Make hosts ready, all at once.

    Args:
        hosts: The hosts.
        say: Reports a line for each host: what was changed, or what went wrong.

    Returns:
        The names of those that are not ready.

    Raises:
        EngineError: This host has no ssh.
    """

    def one(host: SshHost) -> bool:
        try:
            changed = _set_up(host, packages)
        except EngineError as error:
            say(f"{host.name}: {error}")
            return False
        say(f"{host.name}: ready; {changed}")
        return True

    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        folder = Path(name)
        version = own_wheel.version_of_code()
        (folder / _CONSTRAINTS).write_text(own_wheel.constraints(), encoding="ascii")
        packages = _Packages(folder=folder, wheel=own_wheel.build(folder), version=version)
        with ThreadPoolExecutor(len(hosts)) as pool:
            are_ready = list(pool.map(one, hosts))
    return [host.name for host, is_ready in zip(hosts, are_ready, strict=True) if not is_ready]


def _set_up(host: SshHost, packages: _Packages) -> str:
    """Make a host ready; returns what was changed."""
    if not _lacks(host, packages):
        return "nothing changed"
    python = PurePosixPath(host.python)
    if python.parent.name != "bin":
        raise EngineError(
            f"python={host.python} is no environment of its own; name one, such as "
            "python=venv/bin/python, which is made if it is not there"
        )
    venv = str(python.parent.parent)
    quoted = shlex.quote(venv)
    make = f"{{ {_PYTHON} -m venv {quoted} || python3 -m venv {quoted}; }}"
    made = _do(host, f"test -x {shlex.quote(host.python)} || {{ {make} && echo {quoted} made; }}")
    _send(host, venv, packages.few())
    how = "installed by its registry"
    if problem := _install(host, venv, packages, _REGISTRY):
        how = f"sent from here and installed, since its registry did not do: {problem}"
        _send(host, venv, packages.all())
        if problem := _install(host, venv, packages, _NO_REGISTRY):
            raise EngineError(f"packages cannot be installed: {problem}")
    _do(host, f"rm -r {quoted}/{_SENT}")
    if lacks := _lacks(host, packages):
        raise EngineError(lacks)
    changes = [last_line(made), f"holdfast {packages.version} and what it needs {how}"]
    return "; ".join(filter(None, changes))


def _lacks(host: SshHost, packages: _Packages) -> str:
    """In words what stops a host from running agents of this holdfast; nothing if it can."""
    facts = facts_of(host)
    if isinstance(facts, str):
        return facts
    return "" if facts.version == packages.version else f"has holdfast {facts.version}"


def _install(host: SshHost, venv: str, packages: _Packages, where: str) -> str:
    """Install what was sent; returns in words what went wrong, or nothing."""
    pip = f"../bin/python {_PIP} {where} -c {_CONSTRAINTS}"
    wheel = packages.wheel.name
    commands = [
        f"cd {shlex.quote(venv)}/{_SENT}",
        f"{pip} ./{wheel}",
        f"{pip} --force-reinstall --no-deps ./{wheel}",  # its code may differ, not its version
    ]
    done = run_on(host, " && ".join(commands), INSTALL_S)
    return (last_line(done.stderr) or f"status {done.returncode}") if done.returncode else ""


def _send(host: SshHost, venv: str, files: list[Path]) -> None:
    """Have files in a folder of a host's environment."""
    folder = f"{shlex.quote(venv)}/{_SENT}"
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                archive.add(file, arcname=file.name)
        packed.seek(0)
        _do(host, f"mkdir -p {folder} && tar -x -C {folder}", packed)


def _do(host: SshHost, command: str, source: IO[bytes] | None = None) -> str:
    """Output of a command on a host.

    Raises:
        EngineError: It fails.
    """
    done = run_on(host, command, INSTALL_S, source)
    if done.returncode:
        reason = last_line(done.stderr) or f"status {done.returncode}"
        raise EngineError(f"{command.split(maxsplit=1)[0]} has failed there: {reason}")
    return done.stdout


def _download(wheel: Path, constraints: Path, folder: Path) -> None:
    """Load the wheels of a package and of all that it needs."""
    words = ["--quiet", "--only-binary=:all:", "-c", str(constraints), "-d", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *words, str(wheel)],
        check=False,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
    )
    if done.returncode:
        raise EngineError(f"the wheels cannot be loaded here: {last_line(done.stderr)}")
