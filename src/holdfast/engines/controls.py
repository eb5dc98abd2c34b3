"""Controls: how others speak to a run that is under way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from holdfast.arena.memory import Arena
from holdfast.linux.lifeline import STOP_SIGNALS


@dataclass(slots=True, kw_only=True)
class Controls:
    """Set by whoever asked for the run, looked at about ten times a second.

    Attributes:
        stop: Ends the run after the step in hand, with a checkpoint.
        abort: Ends the run at once.
        watch: Called with the arena.
    """

    stop: bool = False
    abort: bool = False
    watch: Callable[[Arena], None] | None = None


@contextmanager
def stopped_by_signals(controls: Controls, what: str) -> Iterator[None]:
    """Have the signals in STOP_SIGNALS stop a run, and abort it when they come again.

    Args:
        controls: The run's.
        what: What it is that stops, for whoever has sent the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        controls.abort = controls.stop
        controls.stop = True
        with suppress(OSError):  # whoever read it may have got the same signal
            os.write(
                2, f"stopping {what}; once more to abort\n".encode()
            )  # print may be interrupted

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
