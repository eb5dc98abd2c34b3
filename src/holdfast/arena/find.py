"""Find: opens the arena of a process, for programs outside the run.

Faults are injected into a given step, and benchmarks measure microseconds. Both need the arena
itself; everything else learns of progress from the coordinator.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LINK: Final = "/memfd:holdfast-arena"


def open_arena(pid: int) -> int | None:
    """Open the arena of a process; None if it has none or is gone.

    Raises:
        PermissionError: The process is another user's.
    """
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()).startswith(_LINK):
                return os.open(link, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process is gone
    return None
