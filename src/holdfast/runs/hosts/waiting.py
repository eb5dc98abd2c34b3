"""Waiting: for a place where a run can begin."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from holdfast.errors import Interrupted
from holdfast.runs.run import stopped_by_signals
from holdfast.runs.supervisor import Controls

TICK_S: Final = 0.1


def wait_until_free(
    attempt: Callable[[], str], lacking: str, *, every_s: float, controls: Controls
) -> str:
    """Repeat an attempt until it lacks nothing. What it lacks is said when that changes.

    Args:
        attempt: Returns what is lacking.
        lacking: What was lacking just now.
        every_s: How long to wait between attempts, seconds.
        controls: End the wait; signals set them.

    Returns:
        Nothing: all of it is free.

    Raises:
        Interrupted: The wait was ended.
    """
    said = ""
    with stopped_by_signals(controls, "the wait"):
        while lacking:
            if lacking != said:
                print(f"holdfast: waiting for {lacking}", file=sys.stderr, flush=True)
                said = lacking
            _rest(every_s, controls)
            lacking = attempt()
    return lacking


def _rest(seconds: float, controls: Controls) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        if controls.stop:
            raise Interrupted("stopped while the run waited: nothing of it had begun")
        time.sleep(TICK_S)
