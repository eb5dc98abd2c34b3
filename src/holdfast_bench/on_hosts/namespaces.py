"""Namespaces: hosts on one machine, on a switch of their own, whose links can be cut and shaped.

Each host is a network namespace with its own address, host name and disk: the same path, `folder`,
shows every host another directory. Hosts know each other as `h1`, `h2` and so on. Nothing here
touches the network of the machine, so several tests can run at once. It needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from holdfast.errors import HoldfastError

NET = "10.77.0"
UNSHAPED = "veth"
"""A link whose rate is not limited."""
NOWHERE = "02:00:00:00:00:01"
"""The hardware address of no host."""
_ENTER = (
    'hostname "$0"; mount --bind "$1" "$2"; mount --bind "$3" /etc/hosts; '
    'mount --bind /dev/null /etc/resolv.conf; cd "$2"; shift 3; exec "$@"'
)
"""There is no name server to wait for."""


class Namespaces:
    """Hosts 1, 2 and so on with the addresses 10.77.0.1, 10.77.0.2, ….

    Args:
        folder: What each host sees at this path is in `folder-1`, `folder-2` and so on.
        count: How many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.numbers = range(1, count + 1)
        self._switch = f"holdfast-{os.getpid()}"
        self._shaped: set[int] = set()
        self._names = folder.with_name(f"{folder.name}-names")

    @staticmethod
    def what_is_missing() -> str:
        """Why there can be none on this machine, or nothing."""
        has_all = os.geteuid() == 0 and shutil.which("ip") is not None
        return "" if has_all else "network namespaces need root and iproute2"

    def up(self) -> None:
        """Make them.

        Raises:
            HoldfastError: The machine does not allow it.
        """
        try:
            self._up()
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode().strip()
            raise HoldfastError(f"there are no network namespaces here: {reason}") from None

    def _up(self) -> None:
        self.folder.mkdir()
        known = {"127.0.0.1": "localhost"} | {self.address(n): f"h{n}" for n in self.numbers}
        lines = [f"{address} {name}\n" for address, name in known.items()]
        self._names.write_text("".join(lines), encoding="ascii")
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for number in self.numbers:
            self.disk(number).mkdir()
            name = self.name(number)
            port = f"port{number}"
            _ip("netns", "add", name)
            peer = ["type", "veth", "peer", "name", "eth0", "netns", name]
            _ip("-n", self._switch, "link", "add", port, *peer)
            _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "route", "add", "default", "dev", "eth0")

    def down(self) -> None:
        """End every process in them, and remove them."""
        for number in self.numbers:
            self.kill(number)
        for name in [*map(self.name, self.numbers), self._switch]:
            _try("ip", "netns", "del", name)

    def kill(self, number: int) -> None:
        """End every process of a host at once, as if its power was cut."""
        for pid in self.processes(number):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, number: int) -> list[int]:
        """The processes on a host."""
        return _processes(self.name(number))

    def name(self, number: int) -> str:
        """The namespace of a host."""
        return f"{self._switch}-{number}"

    @staticmethod
    def address(number: int) -> str:
        """The address of a host."""
        return f"{NET}.{number}"

    def disk(self, number: int) -> Path:
        """The disk of a host, as seen from outside."""
        return self.folder.with_name(f"{self.folder.name}-{number}")

    def output(self, number: int) -> str:
        """The output of `holdfast` commands on a host."""
        path = self._output(number)
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, number: int, *words: object) -> subprocess.Popen[bytes]:
        """Start `holdfast` with these words on a host."""
        with self._output(number).open("ab") as output:
            return self.run(number, sys.executable, "-m", "holdfast", *words, output=output)

    def run(
        self,
        number: int,
        *command: object,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start any command on a host; its environment is that of this process by default."""
        return subprocess.Popen(
            self.command(number, *command),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )

    def command(self, number: int, *command: object) -> list[str]:
        """The command that runs another one on a host."""
        return [
            *("ip", "netns", "exec", self.name(number)),
            *("unshare", "--mount", "--uts", "sh", "-c", _ENTER, f"h{number}"),
            *map(str, (self.disk(number), self.folder, self._names, *command)),
        ]

    def cut(self, number: int) -> None:
        """Cut a host off: neither end of a connection sees a FIN or a RST."""
        _ip("-n", self._switch, "link", "set", f"port{number}", "nomaster")

    def heal(self, number: int) -> None:
        """Undo everything that was done to the link of a host."""
        _ip("-n", self._switch, "link", "set", f"port{number}", "master", "switch")
        for each in self.numbers:
            _try("ip", "-n", self.name(each), "neigh", "del", self.address(number), "dev", "eth0")
        self._filter(number, "-F", "INPUT")
        if number in self._shaped:
            self._shaped.remove(number)
            _run("tc", "-n", self.name(number), "qdisc", "del", "dev", "eth0", "root")

    def deafen(self, number: int, to: int) -> None:
        """Let a host hear nothing of another, which still hears it: that one sends elsewhere."""
        where = ["lladdr", NOWHERE, "dev", "eth0", "nud", "permanent"]
        _ip("-n", self.name(to), "neigh", "replace", self.address(number), *where)

    def slow(self, number: int, rate: str) -> None:
        """Limit what a host sends to a rate, such as `100mbit`."""
        self._shaped.add(number)
        shape = ["rate", rate, "burst", "256kb", "latency", "50ms"]
        _run(
            "tc", "-n", self.name(number), "qdisc", "replace", "dev", "eth0", "root", "tbf", *shape
        )

    def wifi(self, number: int) -> None:
        """Limit a host to 20 Mbit/s, and drop 1 % of what it receives."""
        self.slow(number, "20mbit")
        rule = ["-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "DROP"]
        self._filter(number, "-A", "INPUT", *rule)

    def _filter(self, number: int, *words: str) -> None:
        if shutil.which("iptables"):
            _run("ip", "netns", "exec", self.name(number), "iptables", *words)
        elif words[0] != "-F":
            raise HoldfastError("dropping single packets needs iptables; install it")

    def _output(self, number: int) -> Path:
        return self.disk(number).with_suffix(".out")


@contextmanager
def namespaces(folder: Path, count: int, link: str = UNSHAPED) -> Iterator[Namespaces]:
    """Make hosts, and remove them at the end.

    Args:
        folder: Holds their disks.
        count: How many.
        link: The rate of each host's link, such as `1gbit`; or UNSHAPED.

    Raises:
        HoldfastError: The machine does not allow it.
    """
    made = Namespaces(folder / "disk", count)
    try:
        made.up()
        for number in made.numbers if link != UNSHAPED else ():
            made.slow(number, link)
        yield made
    finally:
        made.down()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _processes(namespace: str) -> list[int]:
    return [int(pid) for pid in _try("ip", "netns", "pids", namespace).split()]


def _try(*words: str) -> str:
    """The output of a command, whether it succeeds or not."""
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout
