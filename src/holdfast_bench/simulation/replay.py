"""Replay: feeds the recorded events of a coordinator to the machine that they began with.

A crash dump (`logs/coordinator-crash.jsonl` of a run) fails again here, at its last event. Of any
other debug log every stage and every action must come out as recorded.
"""

from __future__ import annotations

from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import DebugLog, event_in_words
from holdfast.wire.debug_file import DebugFile


def replay(recorded: DebugFile) -> CoordinatorStateMachine:
    """Replay a debug log, or a crash dump up to its failure; returns the machine at its end.

    Raises:
        AssertionError: A stage or an action differs from what was recorded, or an invariant fails.
        Exception: What the machine raised when the dump was written.
    """
    log = DebugLog(recorded.start)
    for number, entry in enumerate(recorded.entries, 1):
        log.handle(entry.event, entry.now)
        assert log.entries[-1] == entry, (
            f"event {number} ({event_in_words(entry.event)}) had this result: {entry}; "
            f"now it has this: {log.entries[-1]}"
        )
    return log.machine
