"""Headline: what a person should do about a run now, in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.record.run_record import RunRecord
from holdfast.record.state import RunState, StateName
from holdfast.record.units import NBSP, clock, count, duration
from holdfast.record.views.alerts import alerts_of
from holdfast.record.views.metric import metric_of

ACTIONS: Final = {
    "input-bound": "Raise `loader.workers`.",
    "imbalanced": "Set `balance: dynamic`.",
    "checkpoint-bound": "Raise `checkpoint.every_steps`.",
    "shard-bound": "Set `shards` lower.",
    "coarse shards": "Set `shards` higher.",
    "memory-bound": "Set `shards` higher: each is smaller.",
    "near the memory limit": "Set `shards` higher: each is smaller.",
}
"""Remedies against a bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Advice to a person, for now.

    Attributes:
        level: `failure`, `warning`, or `done` if there is nothing to do.
        icon: For its level.
        title: Subject, in a word or two.
        words: A sentence or two; what stands between backticks is for a file or a shell.
        more: Since when, or the like; may be empty.
    """

    level: Literal["failure", "warning", "done"]
    icon: str
    title: str
    words: str
    more: str = ""


def headline_of(record: RunRecord, state: RunState, now: float) -> Headline | None:
    """The headline of a run; None if it trains and there is nothing to do.

    Args:
        record: The run.
        state: Its state.
        now: Unix time, seconds.
    """
    found = _HEADLINES.get(state.name)
    return None if found is None else found(record, state, now)


def _failed(record: RunRecord, state: RunState, _: float) -> Headline:
    return Headline(
        level="failure", icon="✕", title="Failed:", words=state.reason, more=_resume(record)
    )


def _stalled(record: RunRecord, state: RunState, now: float) -> Headline:
    at = record.steps.columns["at"]
    more = f"last step {duration(now - at[-1])} ago" if at else "no step yet"
    words = f"{state.reason}. See `holdfast events` and `holdfast logs`."
    return Headline(level="failure", icon="▲", title="Stalled:", words=words, more=more)


def _recovering(record: RunRecord, state: RunState, now: float) -> Headline:
    failure = record.open_failure
    more = f"{duration(now - failure['time_unix_s'])} so far" if failure else ""
    return Headline(level="warning", icon="↻", title="Recovering:", words=state.reason, more=more)


def _stopped(record: RunRecord, _: RunState, __: float) -> Headline:
    words = f"after {count(record.steps.newest, 'step')}."
    return Headline(level="warning", icon="■", title="Stopped", words=words, more=_resume(record))


def _resume(record: RunRecord) -> str:
    saved = record.checkpoints
    return f"resumes from step {saved[-1].step:,}" if saved else "resumes from the start"


def _finished(record: RunRecord, _: RunState, __: float) -> Headline:
    metric = metric_of(record)
    result = record.result or {}
    reached = f"{metric.title} {metric.shown(metric.values[-1])} after " if metric else "after "
    digest = str(result.get("weights_sha256", ""))
    return Headline(
        level="done",
        icon="✓",
        title="Finished:",
        words=f"{reached}{count(record.steps.newest, 'step')}.",
        more=f"weights sha256 {digest[:4]}…{digest[-4:]}" if digest else "",
    )


def _running(record: RunRecord, _: RunState, now: float) -> Headline | None:
    firing = [alert for alert in alerts_of(record, now) if alert.since is not None]
    if not firing:
        return _bottleneck(record, now)
    worst = firing[0]
    others = f"{len(firing) - 1} more · " if len(firing) > 1 else ""
    return Headline(
        level="failure" if worst.rule.severity == "critical" else "warning",
        icon="▲",
        title=f"{worst.rule.title}:",
        words=f"{worst.value}. {worst.rule.remedy}",
        more=f"{others}since {clock(worst.since or now, now)}",
    )


def _bottleneck(record: RunRecord, now: float) -> Headline | None:
    found = [event for event in record.events if event["event"] == "bottleneck-found"]
    if not found or found[-1]["bottleneck"] == "compute-bound":
        return None  # there is nothing to do
    name = str(found[-1]["bottleneck"])
    words = str(found[-1]["text"])
    since = found[-1]["time_unix_s"]
    for event in reversed(found):
        if event["bottleneck"] != name:
            break
        since = event["time_unix_s"]
    words = re.sub(r"(?<=\d)%", f"{NBSP}%", words)
    return Headline(
        level="warning",
        icon="▲",
        title=f"{name[:1].upper()}{name[1:]}:",
        words=f"{words}. {ACTIONS.get(name, '')}".rstrip(),
        more=f"since {clock(since, now)}",
    )


_HEADLINES: Final[Mapping[StateName, Callable[[RunRecord, RunState, float], Headline | None]]] = {
    StateName.FAILED: _failed,
    StateName.STALLED: _stalled,
    StateName.RECOVERING: _recovering,
    StateName.STOPPED: _stopped,
    StateName.FINISHED: _finished,
    StateName.RUNNING: _running,
}
