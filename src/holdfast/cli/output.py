"""Output: how a command ends whose standard output cannot be written.

Python writes what is buffered after the command has ended, where it can only print a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Descriptor(io.FileIO):
    """Standard output; `failure` tells the error of a write to it from all others."""

    failure: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


@contextmanager
def checked_output() -> Iterator[None]:
    """While the block runs and at its end, exit with status 1 if standard output cannot be written.

    Standard error says why, unless the reader has gone, as that of `| head` does.
    """
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper) or not isinstance(
        given.buffer, io.BufferedWriter | io.FileIO
    ):
        yield  # it is closed, or memory
        return
    descriptor = _Descriptor(given.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        descriptor if given.write_through else io.BufferedWriter(descriptor),
        given.encoding,
        given.errors,
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error is not descriptor.failure:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor.fileno())  # for what is still buffered
        if error.errno == errno.EPIPE:
            sys.exit(1)
        sys.exit(
            f"holdfast: standard output: {error.strerror}; free some space, or send it elsewhere"
        )
    finally:
        sys.stdout = given
