"""A run in the background: the same command in a session of its own, and a view of what it prints.

    holdfast train JOB --on ray ──▶ holdfast train --background JOB --on ray   supervises the run
        shows what that prints, and passes Ctrl-C on

So the run outlives the command that has started it, and whatever that was started from.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.linux.lifeline import handling
from holdfast.record import registry
from holdfast.record.registry import Record
from holdfast.rundir.run_directory import is_held

BACKGROUND: Final = "--background"
OUTPUT: Final = "output.log"
ERRORS: Final = "errors.log"
TICK_S: Final = 0.1
BEGIN_TIMEOUT_S: Final = 120.0
"""Time that a command which leaves the run alone waits for it to begin."""


def run_in_background(
    command: Sequence[str], run_dir: Path, job: str, engine: str, *, detach: bool
) -> int:
    """Run a command in the background; show what it prints until it ends.

    Args:
        command: The words of the command, its name first, without `--detach`.
        run_dir: Directory of its run.
        job: Name of its job.
        engine: Name of the engine that places its agents.
        detach: True to leave the run alone once it has begun.

    Returns:
        The exit status; 0 for a run that is left alone.
    """
    record, process = start(command, run_dir, job, engine)
    if not detach:
        return follow(record, process)
    status = await_begin(record, process)
    if not status:
        print(record.id)
        print(f"in the background; see holdfast logs -f {record.id}", file=sys.stderr)
    return status or 0


def start(
    command: Sequence[str], run_dir: Path, job: str, engine: str
) -> tuple[Record, subprocess.Popen[bytes]]:
    """Start a command in the background, for a run in `run_dir`."""
    record = registry.add(run_dir, job, engine)
    name, *words = command
    output = record.folder / OUTPUT
    errors = record.folder / ERRORS
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            # A --run among the words is the same, and holds: it comes last.
            [sys.executable, "-m", "holdfast", name, BACKGROUND, "--run", str(run_dir), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return record, process


def follow(record: Record, process: subprocess.Popen[bytes]) -> int:
    """Show what a run in the background prints until it ends; returns its exit status.

    Ctrl-C is for the run. Any other end of this command leaves the run alone.
    """
    with handling([signal.SIGINT], lambda number, _: process.send_signal(number)):
        try:
            show(record.folder, lambda: process.poll() is None)
        except BrokenPipeError:  # the reader is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not record.directory.exists():
        registry.forget(record)
    return process.wait()


def await_begin(record: Record, process: subprocess.Popen[bytes]) -> int | None:
    """Wait until a run in the background has begun, or is waiting; returns the exit status of one
    that has ended instead.
    """
    deadline = time.monotonic() + BEGIN_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if is_held(record.directory) or record.is_waiting:
            return None
        time.sleep(TICK_S)
    if process.poll() in (None, 0):
        return None
    show(record.folder, lambda: False)
    if not record.directory.exists():
        registry.forget(record)
    return process.returncode


def show(folder: Path, goes_on: Callable[[], bool]) -> None:
    """Copy what is printed for a run to this command's own streams.

    Args:
        folder: Folder of the run, in the registry.
        goes_on: Says whether more may come.
    """
    files = [(folder / ERRORS, sys.stderr), (folder / OUTPUT, sys.stdout)]
    copies = [(path.open("rb"), stream.buffer) for path, stream in files if path.exists()]
    try:
        while True:
            is_last = not goes_on()
            for source, target in copies:
                while piece := source.read(1 << 16):
                    target.write(piece)
                target.flush()
            if is_last:
                return
            time.sleep(TICK_S)
    finally:
        for source, _ in copies:
            source.close()
