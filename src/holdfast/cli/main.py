"""Where the `holdfast` command begins: what takes longest is started first."""

from __future__ import annotations

import sys

from holdfast.agent.spawn import WORKER, spawn


def main() -> None:
    """Run the command line."""
    if not sys.platform.startswith("linux"):
        sys.exit("holdfast: needs Linux (memfd, pidfd and fork)")
    words = sys.argv[1:]
    trains = words[:1] == ["train"] and not {"--help", "--dry-run"} & set(words)
    spawned = spawn(WORKER) if trains else None
    try:
        from holdfast.cli import app  # while torch is being imported over there

        app.run(spawned)
    finally:
        if spawned is not None:
            spawned.process.kill()
            spawned.process.wait()
