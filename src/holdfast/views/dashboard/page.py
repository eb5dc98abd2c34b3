"""Page: which panels there are, in which order."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.views.dashboard.markup import Panel, text
from holdfast.views.dashboard.panels import (
    attention,
    breakdown,
    checkpoints,
    devices,
    learning,
    lost,
    newest_recovery,
    shard_plans,
    summary,
    throughput,
    timeline,
    worker_speeds,
)
from holdfast.views.dashboard.theme import Mode, colors
from holdfast.views.dashboard.view import View

FAST_S: Final = 1
"""Interval at which what changes with each step is drawn again."""
SLOW_S: Final = 5
"""Interval at which the rest is drawn again."""
PANELS: Final[Mapping[str, Callable[[View], Panel]]] = {
    "summary": summary.panel,
    "band": attention.band,
    "p_loss": learning.loss,
    "p_accuracy": learning.accuracy,
    "p_throughput": throughput.panel,
    "p_timeline": timeline.panel,
    "p_report": newest_recovery.panel,
    "p_shards": shard_plans.panel,
    "p_breakdown": breakdown.panel,
    "p_workers": devices.panel,
    "p_hardware": worker_speeds.panel,
    "p_checkpoints": checkpoints.panel,
    "p_lost": lost.panel,
    "p_alerts": attention.alerts,
}
"""The panels by the key of their container; the style sheet places them."""
FAST: Final = frozenset({"summary", "band", "p_throughput", "p_timeline", "p_report"})
FOOTER: Final = (
    '<div class="foot">holdfast records every number in the run directory. This page is served '
    "to this machine only and sends nothing to any other; to see it from another one, forward its "
    "port: <code>ssh -L PORT:127.0.0.1:PORT HOST</code></div>"
)
_MARK: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="22" viewBox="0 0 20 22" '
    'fill="none" stroke="{color}" stroke-width="1.9" stroke-linecap="round"><path d="M10 1v9"/>'
    '<path d="M10 8c0 4-2.2 4.6-4.8 6.2C3.2 15.5 2.2 17 2 20.5"/>'
    '<path d="M10 8c0 4 2.2 4.6 4.8 6.2 2 1.3 3 2.8 3.2 6.3"/>'
    '<path d="M10 9c0 4.5-2.3 5.5-2.8 11.5"/>'
    '<path d="M10 9c0 4.5 2.3 5.5 2.8 11.5"/></svg>'
)


def brand(mode: Mode) -> str:
    """The mark and the name."""
    picture = base64.b64encode(_MARK.format(color=colors(mode).kelp).encode()).decode()
    return (
        f'<div class="brand"><img alt="" src="data:image/svg+xml;base64,{picture}">holdfast</div>'
    )


def panel_error(name: str, error: Exception) -> Panel:
    """Message in the place of a panel that could not be drawn."""
    title = name.removeprefix("p_").capitalize()
    words = f"{title} could not be drawn: {text(type(error).__name__)}: {text(error)}"
    return Panel(body=f'<p class="none">{words}</p>')
