"""Moments: the events of a run as `core.goodput` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast.record.goodput import Kind, Moment

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


def moments_of(events: Iterable[Mapping[str, Any]]) -> Iterator[Moment]:
    """The events that say where a run's time went.

    Args:
        events: The lines of `events.jsonl` that `is_event` accepts.
    """
    for event in events:
        at = float(event["time_unix_s"])
        name = event["event"]
        match event:
            case {"event": "run-started", "workers": int(workers)}:
                yield Moment(at=at, kind=Kind.STARTED, workers=workers)
            case {"event": "run-started"}:
                yield Moment(at=at, kind=Kind.STARTED)
            case {"event": "run-ended"}:
                yield Moment(at=at, kind=Kind.ENDED)
            case {"event": "run-failed"}:
                yield Moment(at=at, kind=Kind.FAILED)
            case {"event": "fault-injected"}:
                yield Moment(at=at, kind=Kind.FAULT)
            case {"event": "checkpoint-committed", "step": int(step)}:
                yield Moment(at=at, kind=Kind.SAVED, step=step)
            case {
                "event": "generation-started",
                "members": list(members),
                "step": int(step),
                "last_committed_step": int(last),
            }:
                workers = len(members)
                yield Moment(at=at, kind=Kind.RESUMED, workers=workers, step=step, last_step=last)
            case _ if is_failure(event):
                yield Moment(at=at, kind=Kind.FAILURE, is_silent=name in _SILENT)
            case _:
                pass


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
