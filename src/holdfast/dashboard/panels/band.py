"""Band: what to do now, in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.dashboard.markup import Panel, text
from holdfast.dashboard.panels.metric import metric_of
from holdfast.dashboard.units import NBSP, clock, count, duration
from holdfast.dashboard.view import View
from holdfast.observe.record.state import StateName

ACTIONS: Final = {
    "input-bound": "Raise <code>loader.workers</code>.",
    "imbalanced": "Set <code>balance: dynamic</code>.",
    "checkpoint-bound": "Raise <code>checkpoint.every_steps</code>.",
    "shard-bound": "Set <code>shards</code> lower.",
    "coarse shards": "Set <code>shards</code> higher.",
    "near the memory limit": "Set <code>shards</code> higher: each is smaller.",
}
"""What helps against a bottleneck."""


def panel(view: View) -> Panel:
    """The band; without a body if there is nothing to do."""
    return _BANDS.get(view.state.name, _nothing)(view)


def _nothing(_: View) -> Panel:
    return Panel()


def _failed(view: View) -> Panel:
    return _band("red", "✕", "Failed:", text(view.state.reason), _resume(view))


def _stalled(view: View) -> Panel:
    at = view.record.steps.columns["at"]
    more = f"last step {duration(view.now - at[-1])} ago" if at else "no step yet"
    return _band("red", "▲", "Stalled:", text(view.state.reason), more)


def _recovering(view: View) -> Panel:
    failure = view.open_failure
    more = f"{duration(view.now - failure['time_unix_s'])} so far" if failure else ""
    return _band("amber", "↻", "Recovering:", text(view.state.reason), more)


def _stopped(view: View) -> Panel:
    return _band("amber", "■", "Stopped", f"after {_steps(view)}.", _resume(view))


def _band(color: str, icon: str, name: str, words: str, more: str) -> Panel:
    fill = "--amber-fill" if color == "amber" else f"--{color}"
    return Panel(
        body=f'<div class="hf band" style="--c:var(--{color});--f:var({fill})"><span>{icon}</span>'
        f'<p><strong>{name}</strong> {words}</p><span class="more">{more}</span></div>'
    )


def _steps(view: View) -> str:
    return count(view.record.steps.newest, "step")


def _resume(view: View) -> str:
    saved = view.record.checkpoints
    return f"resumes from step {saved[-1].step:,}" if saved else "resumes from the start"


def _finished(view: View) -> Panel:
    metric, result = metric_of(view.record), view.record.result or {}
    reached = (
        f"{text(metric.title)} {metric.shown(metric.values[-1])} after " if metric else "after "
    )
    digest = str(result.get("weights_sha256", ""))
    more = f"weights sha256 {text(digest[:4])}…{text(digest[-4:])}" if digest else ""
    return _band("blue", "✓", "Finished:", f"{reached}{_steps(view)}.", more)


def _bottleneck(view: View) -> Panel:
    found = [event for event in view.record.events if event["event"] == "bottleneck-found"]
    if not found or found[-1]["bottleneck"] == "compute-bound":
        return Panel()  # there is nothing to do
    last = found[-1]
    name, words = str(last["bottleneck"]), str(last["text"])
    since = last["time_unix_s"]
    for event in reversed(found):
        if event["bottleneck"] != name:
            break
        since = event["time_unix_s"]
    title = f"{name[:1].upper()}{name[1:]}:"
    action = ACTIONS.get(name, "")
    return _band(
        "amber",
        "▲",
        text(title),
        f"{text(_spaced(words))}. {action}",
        f"since {clock(since, view.now)}",
    )


def _spaced(words: str) -> str:
    """Words with a space before each `%`."""
    return re.sub(r"(?<=\d)%", f"{NBSP}%", words)


_BANDS: Final[Mapping[StateName, Callable[[View], Panel]]] = {
    StateName.FAILED: _failed,
    StateName.STALLED: _stalled,
    StateName.RECOVERING: _recovering,
    StateName.STOPPED: _stopped,
    StateName.FINISHED: _finished,
    StateName.RUNNING: _bottleneck,
}
