"""Emulates a slower device on this one, in the same way for every system that is measured.

    with device.slowed():
        loss = criterion(model(x), y)
        loss.backward()

The time that blocks take is a multiple of the CPU time that their thread has used in them. So what
a step costs grows with the work in it, as on a slower device, and waits are not multiplied: neither
for other workers, nor for a core that another process uses. Nothing is added to the model, its
hooks or its buffers, and nothing that it computes changes. A block lasts longer by what the one
before has computed, and first of all: DDP waits for others in the backward pass.

    burn    computes on until the thread has used `factor` times the CPU time
    pause   sleeps for the rest of `factor` times the CPU time
    quota   does nothing: the kernel limits the process to `1 / factor` of a core

Burning needs a core for each worker: a worker that waits for others otherwise leaves its core to
them, which real devices cannot. Pausing emulates more devices than there are cores. A thread that
had to wait for a core pauses for less, until that wait is made up: a device has its core to itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
        self._factor = factor
        self._mode = mode
        self._made_up_s: float | None = None
        self._owed_s = 0.0
        self.busy_s = 0.0

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Slow down what this thread computes within the context."""
        if self._made_up_s is None:  # waits of the start-up are not made up
            self._made_up_s = waited_for_core_s()
        match self._mode:
            case "burn":
                end_s = time.thread_time() + self._owed_s
                while time.thread_time() < end_s:
                    pass
            case "pause":
                self._made_up_s += _pause(self._owed_s, self._made_up_s)
        began_s = time.thread_time()
        yield
        computed_s = time.thread_time() - began_s
        self._owed_s = (self._factor - 1) * computed_s
        self.busy_s += self._factor * computed_s


def _pause(seconds: float, made_up_s: float) -> float:
    """Sleep, less by what this thread has waited for a core, apart from `made_up_s`.

    Returns:
        By how much less, seconds.
    """
    less_s = min(seconds, waited_for_core_s() - made_up_s)
    time.sleep(seconds - less_s)
    return less_s


def waited_for_core_s() -> float:
    """Seconds that this thread could have computed, but waited for a core so far (Linux,
    Documentation/scheduler/sched-stats.rst); 0 if the kernel does not count them.
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
