"""Moments: the events of a run as `record.goodput` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast.record.goodput import EventKind, GoodputEvent

FAILURES: Final = frozenset(
    {
        "worker-exited",
        "worker-hung",
        "agent-exited",
        "fork-server-exited",
        "agent-ended",
        "host-lost",
    }
)
"""Events of failures that steps wait for, if they are failures; no step waits for a coordinator."""
_SILENT: Final = frozenset({"worker-hung", "host-lost"})


def moments_of(events: Iterable[Mapping[str, Any]]) -> Iterator[GoodputEvent]:
    """The events that say where a run's time went.

    Args:
        events: The lines of `events.jsonl` that `is_event` accepts.
    """
    for event in events:
        at = float(event["time_unix_s"])
        name = event["event"]
        match event:
            case {"event": "run-started", "workers": int(workers)}:
                yield GoodputEvent(at=at, kind=EventKind.STARTED, workers=workers)
            case {"event": "run-started"}:
                yield GoodputEvent(at=at, kind=EventKind.STARTED)
            case {"event": "run-ended"}:
                yield GoodputEvent(at=at, kind=EventKind.ENDED)
            case {"event": "run-failed"}:
                yield GoodputEvent(at=at, kind=EventKind.FAILED)
            case {"event": "fault-injected"}:
                yield GoodputEvent(at=at, kind=EventKind.FAULT)
            case {"event": "checkpoint-committed", "step": int(step)}:
                yield GoodputEvent(at=at, kind=EventKind.SAVED, step=step)
            case {
                "event": "generation-started",
                "members": list(members),
                "step": int(step),
                "last_committed_step": int(last),
            }:
                workers = len(members)
                yield GoodputEvent(
                    at=at, kind=EventKind.RESUMED, workers=workers, step=step, last_step=last
                )
            case _ if is_failure(event):
                yield GoodputEvent(at=at, kind=EventKind.FAILURE, is_silent=name in _SILENT)


def is_event(line: Mapping[str, Any]) -> bool:
    """True if a line of `events.jsonl` is a whole event."""
    return isinstance(line.get("event"), str) and isinstance(line.get("time_unix_s"), int | float)


def is_failure(event: Mapping[str, Any]) -> bool:
    """True if an event is a failure that steps wait for."""
    match event:
        case {"event": "worker-exited", "unexpected": is_unexpected}:
            return bool(is_unexpected)
        case {"event": "agent-exited" | "fork-server-exited", "status": status}:
            return bool(status != 0)
    return event["event"] in FAILURES
