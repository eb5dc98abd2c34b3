"""RunState: how a run is doing, from its events and its steps."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from holdfast.record import history
from holdfast.record.moments import is_failure
from holdfast.record.units import duration

MIN_STALL_S: Final = 10.0
"""A shorter time without a step is no stall, however fast steps are."""
STALL_FACTOR: Final = 3.0
"""A stall is longer than the longest time between two steps by this."""

_OF_BACKUP: Final = ("backup-completed", "backup-failed")
"""Events that may follow the end of a run."""


class StateName(enum.StrEnum):
    """State of a run, in a word; `waiting` for what it needs is known to the registry only."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    STALLED = "stalled"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED: Final = (StateName.FINISHED, StateName.STOPPED, StateName.FAILED)
"""The states of a run that is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of a run, in words.

    Attributes:
        name: In a word.
        reason: Why, for people; empty where the word says it all.
    """

    name: StateName
    reason: str = ""


def state_of(
    events: Sequence[Mapping[str, Any]],
    last_step_at: float | None,
    longest_step_s: float,
    now: float,
    *,
    is_held: bool,
    counts_steps: bool = True,
) -> RunState:
    """State of a run, in words.

    Args:
        events: Events of the run, oldest first.
        last_step_at: Commit of its newest step, Unix time, seconds; None without a step.
        longest_step_s: The longest time between two steps.
        now: Unix time, seconds.
        is_held: True if a process holds the run's directory.
        counts_steps: True if the run makes steps. A script that has made none runs once its workers
            do.
    """
    current: list[Mapping[str, Any]] = []  # of the newest attempt, the newest first
    for event in reversed(events):
        if event["event"] in _OF_BACKUP:
            continue
        if event["event"] in ("run-ended", "run-failed") and not current:
            return _ended(event)
        current.append(event)
        if event["event"] == "run-started":
            break
    if is_held:
        if not counts_steps and current:
            resumed = (event for event in current if event["event"] == "generation-started")
            last_step_at = next(resumed, {}).get("time_unix_s")
            longest_step_s = inf
        return _current(current, last_step_at, longest_step_s, now)
    if not current:
        return RunState(name=StateName.STARTING, reason="it has no event yet")
    reason = "its process ended without writing an event; continue it with --resume"
    return RunState(name=StateName.FAILED, reason=reason)


def _current(
    events: Sequence[Mapping[str, Any]],
    last_step_at: float | None,
    longest_step_s: float,
    now: float,
) -> RunState:
    """State of an attempt that has not ended; its `events` are the newest first."""
    began = events[-1]["time_unix_s"] if events else now
    stepped_at = last_step_at if last_step_at is not None and last_step_at >= began else None
    for event in events:
        if stepped_at is not None and event["time_unix_s"] <= stepped_at:
            break
        if is_failure(event):
            is_hang = event["event"] == "worker-hung"
            name = StateName.STALLED if is_hang else StateName.RECOVERING
            return RunState(name=name, reason=history.words(event))
    if stepped_at is None:
        reason = history.words(events[0]) if events else ""
        return RunState(name=StateName.STARTING, reason=reason)
    quiet = now - stepped_at
    if quiet > max(MIN_STALL_S, STALL_FACTOR * longest_step_s):
        reason = f"no step for {duration(quiet)}"
        return RunState(name=StateName.STALLED, reason=reason)
    return RunState(name=StateName.RUNNING)


def _ended(event: Mapping[str, Any]) -> RunState:
    if event["event"] == "run-ended":
        is_stopped = event.get("status") == "stopped"
        return RunState(name=StateName.STOPPED if is_stopped else StateName.FINISHED)
    name = StateName.STOPPED if event.get("error") == "Interrupted" else StateName.FAILED
    return RunState(name=name, reason=str(event.get("message", "")))
