"""Entry point of the `holdfast` command: starts the fork server before anything else."""

from __future__ import annotations

import sys
from typing import Final

from holdfast.cli.output import checked_output
from holdfast.launch.collector import without_collector
from holdfast.launch.spawn import WORKER, open_standard_streams, spawn

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
