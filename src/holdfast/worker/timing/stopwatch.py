"""Stopwatch: times and memory that one worker measures, and phases of all workers of its host."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.group import Group
from holdfast.core.balance.times import PHASES, StepTimes
from holdfast.hardware.nvml import GpuThrottling
from holdfast.linux import host_memory
from holdfast.linux.control_groups import Throttling

MEMORY_EVERY_S: Final = 1.0
"""Interval at which the memory in use is looked at."""
_WORDS: Final = [Word.PHASE_TIMES + Phase[name.upper()] for name in PHASES]
_OPTIMIZER: Final = Word.PHASE_TIMES + Phase.OPTIMIZER
_WAITS: Final = [Word.PHASE_TIMES + phase for phase in (Phase.WAIT, Phase.WAIT_REDUCE)]


class Stopwatch:
    """Measures the steps of one worker.

    Args:
        group: The members of the current generation.
        status: Status in which the worker counts the time of each phase.
        device: Device on which it computes.
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

    @property
    def _waited_ns(self) -> int:
        return sum(self._status[word] for word in _WAITS)

    @contextmanager
    def shard(self) -> Iterator[None]:
        """Measure the shard that is read and computed within the context, without waits for other
        workers.
        """
        began = time.monotonic_ns()
        waited = self._waited_ns
        ran = time.thread_time_ns()
        yield
        self._shards_ns += time.monotonic_ns() - began - (self._waited_ns - waited)
        self._processor_ns += time.thread_time_ns() - ran

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Measure what is done once in every step."""
        began = time.monotonic_ns()
        yield
        self._rest_ns += time.monotonic_ns() - began

    def take(self, plan: int) -> StepTimes:
        """Times measured since the last call.

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
    """Share of a worker's memory that is in use, by it and by others.

    Args:
        device: Device on which the worker computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._total_bytes = host_memory.total_bytes()
        self._looked_at = -MEMORY_EVERY_S
        self._permille = 0

    def permille(self) -> int:
        """Share of the host's memory, or of the GPU's if more of that is in use."""
        now = time.monotonic()
        if now - self._looked_at >= MEMORY_EVERY_S:
            self._looked_at = now
            shares = [(host_memory.available().size_bytes, self._total_bytes)]
            if self._device.type == "cuda":
                shares.append(torch.cuda.mem_get_info(self._device))
            self._permille = max(1000 - 1000 * free // total for free, total in shares)
        return self._permille


class PhaseTimes:
    """The times that one worker reports.

    Args:
        arena: Memory in which all workers count their seconds.
        rank: This worker's.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self._statuses = [WorkerStatus(arena, each) for each in range(arena.world_size)]
        self._own = self._statuses[rank]
        self._before = self._own.times()

    def since_last(self) -> dict[str, float]:
        """The times of this worker since the last call, seconds."""
        before = self._before
        self._before = self._own.times()
        spent = {phase.name.lower(): now - before[phase] for phase, now in self._before.items()}
        return {name: round(seconds, 6) for name, seconds in spent.items() if seconds}

    def means(self) -> dict[str, float]:
        """Mean times of the workers since this attempt started, seconds."""
        times = [status.times() for status in self._statuses]
        totals = {phase.name.lower(): sum(time[phase] for time in times) for phase in Phase}
        return {name: round(total / len(times), 4) for name, total in totals.items() if total}


MEASURED: Final = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.COLLECT, Phase.OPTIMIZER})
"""The phases that launch kernels."""
MANY: Final = 256
"""Events after which it is looked which have passed, so that they can be used again."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of phase.

    Attributes:
        phase: The one that begins.
        at_ns: Time by the host's clock.
        event: Recorded then.
    """

    phase: Phase
    at_ns: int
    event: torch.cuda.Event


class DeviceTimeline:
    """Corrects the times that a worker counts for its phases to those that its GPU needed.

    The host only launches kernels. It is through with a phase before the GPU is, and then waits in
    a later one. So an event is recorded on the GPU at each change of phase:

        host    │ forward │ backward │ collect: waits, then copies   │
        GPU        │ forward       │ backward           │ collect    │
                e1             e2                   e3            e4

    Once the GPU has passed an event, the time between it and the one before replaces what the host
    has counted. Events are only asked whether they have passed; nothing waits for them.

    Args:
        status: Status in which it counts them.
        new_event: Makes an event of the GPU that it computes on.
    """

    def __init__(self, status: WorkerStatus, new_event: Callable[[], torch.cuda.Event]) -> None:
        self._status = status
        self._new_event = new_event
        self._changes: deque[_Change] = deque()
        self._unused: list[torch.cuda.Event] = []
        self._added_ns: Counter[Phase] = Counter()
        status.on_change = self._record

    def correct(self) -> None:
        """Correct the times of all phases that the GPU is through with."""
        self._measure()
        for phase, added_ns in self._added_ns.items():
            self._status[Word.PHASE_TIMES + phase] += added_ns
        self._added_ns.clear()

    def _record(self, phase: Phase, at_ns: int) -> None:
        """Take note that `phase` begins."""
        is_measuring = bool(self._changes) and self._changes[-1].phase in MEASURED
        if phase is Phase.LEFT or not (is_measuring or phase in MEASURED):
            return  # a worker may leave because of an error of CUDA, after which no event works
        event = self._unused.pop() if self._unused else self._new_event()
        event.record()
        self._changes.append(_Change(phase, at_ns, event))
        if len(self._changes) > MANY:
            self._measure()

    def _measure(self) -> None:
        """Compare the phases that the GPU is through with to what the host has counted of them."""
        changes = self._changes
        # The end of a phase is the begin of the next one; the GPU has passed both.
        while len(changes) > 1 and changes[1].event.query():  # type: ignore[no-untyped-call]
            begin = changes.popleft()
            end = changes[0]
            if begin.phase in MEASURED:
                device_ns = round(1e6 * begin.event.elapsed_time(end.event))
                self._added_ns[begin.phase] += device_ns - (end.at_ns - begin.at_ns)
            self._unused.append(begin.event)


def timeline_of(status: WorkerStatus, device: torch.device) -> DeviceTimeline | None:
    """The timeline of a worker that computes on `device`; None if that is no GPU."""
    if device.type != "cuda":
        return None
    return DeviceTimeline(status, partial(torch.cuda.Event, enable_timing=True))
