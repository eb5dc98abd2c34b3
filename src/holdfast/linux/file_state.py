"""File state: what changes when a file does, or when the machine boots."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def state_of(files: Iterable[Path]) -> bytes:
    """Changes with the files and with every boot of the machine.

    Raises:
        OSError: A file is missing.
    """
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    states = [
        (path.name, (state := path.stat()).st_ino, state.st_size, state.st_ctime_ns)
        for path in sorted(files)
    ]
    return json.dumps([boot, states]).encode()
