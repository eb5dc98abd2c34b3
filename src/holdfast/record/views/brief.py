"""Brief: how a run is doing, from the ends of its files: for lists of many long runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.job import JOB_FILE
from holdfast.record.moments import is_event
from holdfast.record.state import RunState, StateName, state_of
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS, is_held

NEAR_BYTES: Final = 1 << 16
"""Size of the end of `metrics.jsonl` that is read, unless a line is longer than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """State of a run, in a few values.

    Attributes:
        state: State by `RunRecord.state`.
        step: Committed steps, as far as this host knows.
        last_event: The newest line of `events.jsonl`; None without any.
    """

    state: RunState
    step: int = 0
    last_event: Mapping[str, Any] | None = None


def brief_of(path: Path, now: float | None = None) -> Brief:
    """State of the run in a directory.

    Args:
        path: The directory.
        now: Unix time, seconds; by default this moment.
    """
    events = [line for line in json_lines.last(path / EVENTS) if is_event(line)]
    metrics = path / METRICS
    steps = _steps(json_lines.last(metrics, NEAR_BYTES)) or _steps(json_lines.last(metrics))
    is_there = is_held(path)
    state = state_of(
        events,
        max((line.get("time_unix_s", 0.0) for line in steps), default=None),
        max((line.get("seconds") or 0.0 for line in steps), default=0.0),
        time.time() if now is None else now,
        is_held=is_there,
        counts_steps=bool(steps) or not is_there or _counts_steps(path),
    )
    if state.name is StateName.STALLED:  # unless a step before them took as long
        from holdfast.record.run_record import RunRecord  # imports all that a job consists of

        state = RunRecord(path).state(now)
    step = max((line["step"] for line in steps), default=0)
    return Brief(state=state, step=step, last_event=events[-1] if events else None)


def _steps(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in found if isinstance(line.get("step"), int) and "loss" in line]


def _counts_steps(path: Path) -> bool:
    """True for a training run; a script may make no steps."""
    try:
        job = (path / JOB_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return True
    return not any(line.startswith("script:") for line in job.splitlines())
