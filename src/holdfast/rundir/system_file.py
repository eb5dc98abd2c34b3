"""SystemFile: what the hosts of a run use, in `system.jsonl`.

    agent of this host ─────────────────▶ system.jsonl ── too large ──▶ system.jsonl.1
    coordinator: those of hosts that have joined ─┘

Each line is a sample of one host. Two processes may append to the file, so it is opened for each
line; a reader begins again once it is smaller than before.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from holdfast.hardware.system_sample import ADAPTER, SystemSample
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import SYSTEM

MAX_BYTES: Final = 32 << 20
"""A file that is larger replaces the one before it: there are at most two."""


class SystemFile:
    """The samples in a run's directory.

    Args:
        run_dir: The directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / SYSTEM

    def add(self, samples: Iterable[SystemSample]) -> None:
        """Append samples; those that cannot be written are dropped."""
        with suppress(OSError):
            with json_lines.JsonLines(self._path) as file:
                for sample in samples:
                    file.write(**ADAPTER.dump_python(sample, mode="json"))
            if self._path.stat().st_size > MAX_BYTES:
                self._path.replace(f"{self._path}.1")

    def newest(self) -> dict[str, SystemSample]:
        """The newest sample of each host at the end of the file, by its name."""
        found: dict[str, SystemSample] = {}
        with suppress(OSError):
            for line in json_lines.last(self._path):
                with suppress(ValidationError):  # of another version
                    sample = ADAPTER.validate_python(line)
                    found[sample.host] = sample
        return found


def samples_in(content: bytes, host: str) -> list[SystemSample]:
    """The samples of a host in what it has sent; all else is left out."""
    found = []
    for line in content.splitlines():
        with suppress(ValidationError):
            sample = ADAPTER.validate_json(line)
            if sample.host == host:
                found.append(sample)
    return found
