"""Loopback: hosts that share this machine and its network; each has a folder of its own."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path


class Loopback:
    """Hosts 1, 2 and so on, for what is counted rather than timed.

    Args:
        folder: Gets a folder for each host.
        count: How many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.numbers = range(1, count + 1)
        self._folder = folder
        # Of its own, so that all its ports are free.
        self._address = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])

    def address(self, _: int) -> str:
        """The address of each host."""
        return self._address

    def start(self, number: int, *words: object) -> subprocess.Popen[bytes]:
        """Start `holdfast` with these words on a host."""
        where = self._folder / f"host-{number}"
        where.mkdir(exist_ok=True)
        with self._output(number).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "holdfast", *map(str, words)],
                cwd=where,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self, number: int) -> str:
        """The output of `holdfast` commands on a host."""
        return self._output(number).read_text(errors="replace")

    def _output(self, number: int) -> Path:
        return self._folder / f"host-{number}.txt"
