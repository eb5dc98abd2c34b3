"""Control: how the process of a coordinator or an agent begins and ends.

python -m holdfast.launch.control holdfast.agent.main --name …
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from holdfast.launch.collector import without_collector

CRASHED: Final = 70
"""Exit status of a process in which an exception was not handled."""
_NAME_BYTES: Final = 15
"""The length of a name to the kernel, without the null byte; see proc(5)."""


def name_of(module: str) -> str:
    """The name by which `ps` and `/proc/PID/comm` show a process of a module.

    A fork shows the command line of its parent.
    """
    return f"holdfast-{module.split('.')[-2]}"[:_NAME_BYTES]


def run(module: str, words: Sequence[str]) -> NoReturn:
    """Run the `main` of a module in this process, and end with the status that it returns.

    The interpreter is not ended: it would free all modules, one after the other.

    Args:
        module: Name of the module.
        words: Its command line.
    """
    status = CRASHED
    try:
        with suppress(OSError):
            Path("/proc/self/comm").write_text(name_of(module), encoding="ascii")
        with without_collector():
            main = importlib.import_module(module).main
        status = main(words)
    except SystemExit as end:  # the command line was wrong
        status = end.code if isinstance(end.code, int) else CRASHED
    except BaseException:  # noqa: BLE001  # the outermost frame of this process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the disk is full
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
