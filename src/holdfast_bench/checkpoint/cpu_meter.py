"""CpuMeter: the processor time of the whole machine, between moments that are known later."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import Final, Self

import psutil

INTERVAL_S: Final = 0.05
"""Seconds between two looks; the kernel itself counts in steps of 0.01 s."""


class CpuMeter:
    """Reads the processor time of the machine from `__enter__` to `__exit__`."""

    def __init__(self) -> None:
        self._at = [time.time()]
        self._used_s = [_used_s()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="cpu-meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def __call__(self, begin_unix_s: float, end_unix_s: float) -> float:
        """The processor time between two moments of the past, seconds."""
        return self._until(end_unix_s) - self._until(begin_unix_s)

    def _until(self, moment: float) -> float:
        after = min(max(1, bisect_left(self._at, moment)), len(self._at) - 1)
        (begin, end), (low, high) = (
            values[after - 1 : after + 1] for values in (self._at, self._used_s)
        )
        return low + (high - low) * (moment - begin) / (end - begin)

    def _read(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        used_s = _used_s()
        self._used_s.append(used_s)
        self._at.append(time.time())


def _used_s() -> float:
    """The processor time of all processes since boot, seconds."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in _BUSY)


_BUSY: Final = ("user", "nice", "system", "irq", "softirq")
"""Without time that was idle or taken by other machines; that of guests is in `user`."""
