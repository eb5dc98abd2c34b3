"""Meter: the time and the memory that the steps of a loop take, without the first ones."""

from __future__ import annotations

import time

import torch

Reading = dict[str, float]
"""Cost of a step: its time `step_ms`; of that, `host_ms`, which a processor spends in the loop's
thread; and `peak_mb`, the most memory of a GPU that tensors have."""


class Meter:
    """Reads clocks twice, with nothing left to compute on the device.

    Args:
        device: Where the loop computes.
        warm, steps: Steps before the first reading, and between the two.

    Attributes:
        reading: Set by the second.
    """

    def __init__(self, device: torch.device, warm: int, steps: int) -> None:
        self._on_gpu = device.type == "cuda"
        self._first = warm
        self._last = warm + steps
        self._step = -1
        self._began = (0.0, 0.0)
        self.reading: Reading = {}

    def at(self, step: int) -> None:
        """Read the clocks if it is time to; called at the start of each shard of a step."""
        if step == self._step or step not in (self._first, self._last):
            return
        self._step = step
        if self._on_gpu:
            torch.cuda.synchronize()
        now = time.perf_counter(), time.thread_time()
        if step == self._last:
            per_step = 1000 / (self._last - self._first)
            self.reading["step_ms"] = (now[0] - self._began[0]) * per_step
            self.reading["host_ms"] = (now[1] - self._began[1]) * per_step
            self.reading["peak_mb"] = torch.cuda.max_memory_allocated() / 1e6 if self._on_gpu else 0
        elif self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self._began = now
