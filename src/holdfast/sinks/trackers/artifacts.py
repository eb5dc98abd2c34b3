"""Artifacts: what trackers get at the end of a run: its job, its result, its curve, its weights."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.job import JOB_FILE
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, RESULT

_FILES: Final = (JOB_FILE, RESULT, "loss.png")
_WEIGHTS: Final = "model.safetensors"
_TICK_S: Final = 0.1


def status_of(run_dir: Path) -> str:
    """Status of the newest attempt of a run: `finished`, `stopped`, `failed`, or `lost` if it did
    not say.
    """
    for event in reversed(json_lines.last(run_dir / EVENTS)):
        match event.get("event"):
            case "run-ended":
                return str(event.get("status", "finished"))
            case "run-failed":
                return "stopped" if event.get("error") == "Interrupted" else "failed"
            case "run-started":
                break
    return "lost"


class Artifacts:
    """The files of one run, for all of its trackers.

    Args:
        run_dir: The run's directory.
        folder: Folder in which the weights are written.
    """

    def __init__(self, run_dir: Path, folder: Path) -> None:
        self._run_dir = run_dir
        self._weights = folder / _WEIGHTS
        self._lock = threading.Lock()
        self._is_exported = False

    def files(self, given_up: threading.Event) -> Sequence[Path]:
        """The files that there are; the first call writes the weights.

        Args:
            given_up: Ends that early.
        """
        with self._lock:
            if not self._is_exported:
                self._is_exported = self._export(given_up)
        found = [self._run_dir / name for name in _FILES]
        return [path for path in (*found, self._weights) if path.exists()]

    def remove(self) -> None:
        """Remove the weights, of which the checkpoint is the original."""
        self._weights.unlink(missing_ok=True)

    def _export(self, given_up: threading.Event) -> bool:
        """Write the newest checkpoint's weights, in a process: it imports torch. What has no
        checkpoint has no weights.

        Returns:
            Whether that is done.
        """
        self.remove()  # those of an earlier attempt
        words = ["export", str(self._run_dir), str(self._weights), "--force"]
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                while process.poll() is None:
                    if given_up.wait(_TICK_S):
                        return False
            finally:
                process.kill()
        return True
