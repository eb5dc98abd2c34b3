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
from typing import Final, NoReturn

from holdfast.launch.collector import without_collector

_CRASHED: Final = 70


def run(module: str, words: Sequence[str]) -> NoReturn:
    """Run the `main` of a module in this process, and end with the status that it returns.

    The interpreter is not ended: it would free all modules, one after the other.

    Args:
        module: Name of the module.
        words: Its command line.
    """
    status = _CRASHED
    try:
        with without_collector():
            main = importlib.import_module(module).main
        status = main(words)
    except SystemExit as end:  # the command line was wrong
        status = end.code if isinstance(end.code, int) else _CRASHED
    except BaseException:  # noqa: BLE001  # the outermost frame of this process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the disk is full
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
