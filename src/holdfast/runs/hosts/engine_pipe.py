"""Under an engine: what a command that an engine has started hears from it, and tells it.

token, and the end ─▶ standard input
PLACED, TAKEN_AWAY, OVER ◀─ standard output
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.clusters.engines.engine import PLACED
from holdfast.errors import JobError
from holdfast.wire.token import Token


def tell_engine(word: str) -> None:
    """Tell the engine something."""
    with suppress(OSError):  # it is gone, which ends this process
        os.write(1, f"{word}\n".encode())


def begin(end: Callable[[], object]) -> None:
    """Tell the engine that this command has begun.

    Args:
        end: Called in a thread when the command is to end: the engine has closed the pipe, or is
            gone. The token has been read before.
    """
    tell_engine(PLACED)

    def await_end_of_input() -> None:
        while sys.stdin.read(1):
            pass
        end()

    threading.Thread(target=await_end_of_input, daemon=True).start()


def read_token(path: Path | None) -> Token:
    """The token in a file, or in the first line of standard input.

    Raises:
        JobError: There is none.
    """
    if path is None:
        return Token.parse(sys.stdin.readline().strip())
    try:
        return Token.parse(path.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"token file {path} cannot be read: {error}; copy it to this host") from None
    except JobError as error:
        raise JobError(f"token file {path}: {error}") from None
