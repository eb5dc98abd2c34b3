"""Emulates a slower device on this one, in the same way for every system that is measured.

    with device.slowed():
        loss = criterion(model(x), y)
        loss.backward()

The time that a block takes is a multiple of the CPU time that its thread has used in it. So what a
step costs grows with the work in it, as on a slower device, and waits are not multiplied: neither
for other workers, nor for a core that another process uses. Nothing is added to the model, its
hooks or its buffers, and nothing that it computes changes.

    burn    computes on until the thread has used `factor` times the CPU time
    pause   sleeps until `factor` times the CPU time has passed since the block began
    quota   does nothing: the kernel limits the process to `1 / factor` of a core

Burning needs a core for each worker: a worker that waits for others otherwise leaves its core to
them, which real devices cannot. Pausing emulates more devices than there are cores. A pause ends no
later because the process had to wait for a core, as long as the wait was shorter than the pause.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

Mode = Literal["burn", "pause", "quota"]
MODES: Final = get_args(Mode)


class SlowedDevice:
    """This device, as if it were slower; one for each training process.

    Args:
        factor: How many times slower, at least 1.
        mode: How.

    Attributes:
        busy_s: Seconds that the emulated device has computed so far, without any wait.
    """

    def __init__(self, factor: float, mode: Mode) -> None:
        self._factor, self._mode = factor, mode
        self._late_s = 0.0
        self.busy_s = 0.0

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Slow down what this thread computes within the context."""
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        yield
        emulated_s = self._factor * (time.thread_time() - began_cpu_s)
        match self._mode:
            case "burn":
                while time.thread_time() - began_cpu_s < emulated_s:
                    pass
            case "pause":
                self._pause(emulated_s - (time.monotonic() - began_s))
        self.busy_s += emulated_s

    def _pause(self, seconds: float) -> None:
        """Sleep; what a sleep takes too long is subtracted from the next ones."""
        if seconds <= 0.0:
            return
        left_s = seconds - self._late_s
        if left_s <= 0.0:
            self._late_s = -left_s
            return
        until = time.monotonic() + left_s
        time.sleep(left_s)
        self._late_s = time.monotonic() - until
