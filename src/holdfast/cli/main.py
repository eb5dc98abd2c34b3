"""Entry point of the `holdfast` command: starts the fork server before anything else."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.launch.collector import without_collector
from holdfast.launch.spawn import WORKER, open_standard_streams, spawn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WITH_WORKERS: Final = {"train", "run", "drill", "coordinator", "agent", "doctor"}


def main() -> None:
    """Run the command line."""
    if not sys.platform.startswith("linux"):
        sys.exit("holdfast: needs Linux (memfd, pidfd and fork)")
    open_standard_streams()
    words = sys.argv[1:]
    command, first = [*words, "", ""][:2]
    new = command in WITH_WORKERS or (command == "chaos" and not first.startswith("-"))
    without = {
        "train": ("--on", "--detach"),
        "coordinator": ("--no-workers",),
        "doctor": ("--on",),
    }.get(command, ())
    elsewhere = any(word.startswith(without) for word in words)
    at_once = new and not elsewhere and not {"-h", "--help", "--dry-run"} & set(words)
    spawned = spawn(WORKER, is_command=True) if at_once else None
    try:
        with without_collector():
            from holdfast.cli import app  # while the fork server imports torch

        with checked_output():
            app.run(spawned)
    except KeyboardInterrupt:  # before a run started that could be stopped
        sys.exit(130)
    finally:
        if spawned is not None:
            spawned.process.kill()
            spawned.process.wait()


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

    Standard error says why, unless the reader has gone, as that of `| head` does. Python itself
    writes what is buffered after the command has ended, where it can only print a traceback.
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
