"""Controls: how a caller, or a signal, ends a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from holdfast.linux.lifeline import LEAVE, active_stop_signals, handling


@dataclass(slots=True, kw_only=True)
class Controls:
    """Requests to end a run; set by the caller, read about ten times a second.

    Attributes:
        stop: End the run after the current step, with a checkpoint.
        abort: End the run at once.
        interrupted: True if Ctrl-C asked for the end.
        leave: This host leaves the run, which continues on others.
    """

    stop: bool = False
    abort: bool = False
    interrupted: bool = False
    leave: bool = False

    def request_stop(self) -> None:
        """End the run after the current step, with a checkpoint."""
        self.stop = True


@contextmanager
def stopped_by_signals(controls: Controls, what: str) -> Iterator[None]:
    """Stop a run by stop signals that are not ignored, and abort it when they are repeated; have
    this host leave it by `LEAVE`.

    Args:
        controls: Controls of the run.
        what: Name of what stops, for the person who has sent the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        controls.interrupted = number == signal.SIGINT
        controls.abort = controls.stop
        controls.stop = True
        with suppress(OSError):  # the reader may have got the same signal
            # print may be interrupted
            doing = "aborting" if controls.abort else f"stopping {what}; once more to abort"
            os.write(2, f"{doing}\n".encode())

    def leave(_number: int, _frame: FrameType | None) -> None:
        controls.leave = True

    with handling(active_stop_signals(), stop), handling([LEAVE], leave):
        yield
