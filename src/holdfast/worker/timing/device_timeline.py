"""Device timeline: how long the phases of a worker take on its GPU.

The host only launches kernels. It is through with a phase before the GPU is, and then waits in a
later one. So an event is recorded on the GPU at each change of phase:

    host    │ forward │ backward │ collect: waits, then copies   │
    GPU        │ forward       │ backward           │ collect    │
            e1             e2                   e3            e4

Once the GPU has passed an event, the time between it and the one before replaces what the host has
counted. Events are only asked whether they have passed; nothing waits for them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from holdfast.arena.memory import Phase, Word
from holdfast.arena.worker_status import WorkerStatus

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
    """Corrects the times that a worker counts for its phases.

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
