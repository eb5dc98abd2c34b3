"""Step log: what each training process notes after each of its steps, whichever system it is.

A line has when the step ended (seconds of the machine's monotonic clock), the seconds that the
emulated device has computed in it, and the shards and samples that the process has computed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.rundir import json_lines
from holdfast_bench.unlike.slowed import SlowedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One step of one process.

    Attributes:
        ended_s: When, by the monotonic clock.
        busy_s: What the device has computed.
        shards, samples: As many as it has computed.
    """

    ended_s: float
    busy_s: float
    shards: int
    samples: int


class StepLog:
    """Writes the steps of this process.

    Args:
        folder: Holds a file for each process.
        rank: Of this process.
        device: What it computes on.
    """

    def __init__(self, folder: Path, rank: int, device: SlowedDevice) -> None:
        self._lines = json_lines.JsonLines(_path(folder, rank))
        self._device = device
        self._busy_s = device.busy_s
        self._shards = self._samples = 0

    def add(self, *, shards: int, samples: int) -> None:
        """Count what was computed."""
        self._shards += shards
        self._samples += samples

    def end_step(self) -> None:
        """Note a step that has ended now."""
        busy_s = self._device.busy_s - self._busy_s
        self._busy_s = self._device.busy_s
        self._lines.write(
            ended_s=time.monotonic(), busy_s=busy_s, shards=self._shards, samples=self._samples
        )
        self._shards = self._samples = 0


def read(folder: Path, workers: int) -> list[list[LoggedStep]]:
    """The steps of each process of a run that has ended."""
    return [
        [LoggedStep(**line) for line in json_lines.read(_path(folder, rank))]
        for rank in range(workers)
    ]


def _path(folder: Path, rank: int) -> Path:
    return folder / f"steps-{rank}.jsonl"
