"""Retention events: how what retention has found gets into the log of a run."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.retention import RetentionEvent, RetentionFailed
from holdfast.checkpoint.verify import CheckpointCorrupt, CheckpointUnreadable
from holdfast.rundir.json_lines import EventLog


def log_retention_event(log: EventLog, event: RetentionEvent, where: Mapping[str, str]) -> None:
    """Log an event of retention.

    Args:
        log: The run's log of events.
        event: The event.
        where: Name of the host, if there are several.
    """
    match event:
        case CheckpointCorrupt():
            log.event("checkpoint-corrupt", **_fields(event), **where)
        case CheckpointUnreadable():
            log.event("checkpoint-unreadable", **_fields(event), **where)
        case RetentionFailed():
            log.event("retention-failed", reason=event.reason, **where)


def _fields(event: CheckpointCorrupt | CheckpointUnreadable) -> dict[str, object]:
    return {
        "step": event.step,
        "directory": event.location,
        "file": event.file,
        "reason": event.reason,
    }
