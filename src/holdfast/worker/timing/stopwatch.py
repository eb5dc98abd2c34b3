"""Stopwatch: what one worker measures in a step, to share it with the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from holdfast.arena.memory import Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.group import Group
from holdfast.core.balance.times import PHASES, StepTimes
from holdfast.hardware.nvml import GpuThrottling
from holdfast.linux import host_memory
from holdfast.linux.control_groups import Throttling
from holdfast.worker.timing.device_timeline import timeline_of

MEMORY_EVERY_S: Final = 1.0
"""How often the memory in use is looked at."""
_WORDS: Final = [Word.PHASE_TIMES + Phase[name.upper()] for name in PHASES]
_OPTIMIZER: Final = Word.PHASE_TIMES + Phase.OPTIMIZER


class Stopwatch:
    """Measures the steps of one worker.

    Args:
        group: The members of the current generation.
        status: Where the worker counts the time of each phase.
        device: Where it computes.
    """

    def __init__(self, group: Group, status: WorkerStatus, device: torch.device) -> None:
        self._group = group
        self._status = status
        self._timeline = timeline_of(status, device)
        self._throttling = Throttling()
        self._memory = MemoryUse(device)
        self._gpu_throttling: GpuThrottling | None = None
        if device.type == "cuda":  # torch numbers the visible GPUs only, so a number will not do
            uuid = torch.cuda.get_device_properties(device).uuid
            self._gpu_throttling = GpuThrottling(f"GPU-{uuid}")
        self._shards_ns = self._rest_ns = self._processor_ns = 0
        self._phases = self._counted  # by workers that had the rank before, too
        self._throttled_ns = 0

    @property
    def _counted(self) -> list[int]:
        """The time in each phase so far, nanoseconds."""
        return [self._status[word] for word in _WORDS]

    @contextmanager
    def shard(self) -> Iterator[None]:
        """Measure the shard that is read and computed within the context."""
        began = time.monotonic_ns()
        ran = time.thread_time_ns()
        yield
        self._shards_ns += time.monotonic_ns() - began
        self._processor_ns += time.thread_time_ns() - ran

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Measure what is done once in every step."""
        began = time.monotonic_ns()
        yield
        self._rest_ns += time.monotonic_ns() - began

    def take(self, plan: int) -> StepTimes:
        """What was measured since the last call.

        Args:
            plan: A digest of the plan that the worker has followed.
        """
        # By the host's clock: that of shards has the wait for what a GPU still computes of it.
        optimizer_ns = self._status[_OPTIMIZER] - self._phases[_WORDS.index(_OPTIMIZER)]
        if self._timeline is not None:
            self._timeline.correct()
        counted = self._counted
        throttled_ns = self._throttling.total_ns()
        phases = [max(0, now - last) for now, last in zip(counted, self._phases, strict=True)]
        gpu_ns = 0
        if self._gpu_throttling is not None:
            gpu_ns = self._gpu_throttling.since_last_ns(self._shards_ns)
        times = StepTimes(
            self._shards_ns,
            self._rest_ns + optimizer_ns,
            plan,
            self._processor_ns,
            throttled_ns - self._throttled_ns + gpu_ns,
            self._memory.permille(),
            *(self._group.network.longest_wait if self._group.network else (0, 0)),
            *phases,
        )
        self._shards_ns = self._rest_ns = self._processor_ns = 0
        self._phases = counted
        self._throttled_ns = throttled_ns
        return times


class MemoryUse:
    """How much of the memory of a worker is in use, with all else that uses it.

    Args:
        device: Where the worker computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._total_bytes = host_memory.total_bytes()
        self._looked_at = -MEMORY_EVERY_S
        self._permille = 0

    def permille(self) -> int:
        """Of the host's memory, or the GPU's if more of it is in use."""
        now = time.monotonic()
        if now - self._looked_at >= MEMORY_EVERY_S:
            self._looked_at = now
            shares = [(host_memory.available().size_bytes, self._total_bytes)]
            if self._device.type == "cuda":
                shares.append(torch.cuda.mem_get_info(self._device))
            self._permille = max(1000 - 1000 * free // total for free, total in shares)
        return self._permille
