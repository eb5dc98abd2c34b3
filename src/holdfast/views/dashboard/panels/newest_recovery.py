"""Newest recovery: its report, phase by phase."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from holdfast.record.recovery_reports import RecoveryReport, others_in_words, state_from
from holdfast.record.units import MISSING, count, duration, named, size
from holdfast.record.views.alerts import restart_budget
from holdfast.views.dashboard.markup import Panel, empty, head, number, text
from holdfast.views.dashboard.view import View

TITLE: Final = "Recovery report"
_PHASES: Final = {
    "found": ("detected", "--red"),
    "halted": ("others halted", "--amber-fill"),
    "forked": ("replacement forked", "--amber-fill"),
    "all ready": ("workers ready", "--amber-fill"),
    "loaded": ("checkpoint loaded", "--amber-fill"),
    "state": ("state transferred", "--amber-fill"),
    "next step": ("first step", "--kelp-fill"),
    "back": ("coordinator back", "--kelp-fill"),
}
"""Words and color of each phase of a recovery."""
_OUTCOMES: Final = {
    "recovered": "",
    "restarted": "the script runs again from its start",
    "ended": "the run ended before the next step",
    "failed": "the run failed",
}


def panel(view: View) -> Panel:
    """Phases of the newest recovery, and its cost."""
    if not view.record.recoveries:
        return empty(TITLE, "No recovery so far. The newest one is reported here.")
    report = view.record.recoveries[-1]
    keys = (
        f"<span>{number(str(report.number))}step {report.step:,}</span>"
        f"<span><b>{duration(report.total_s)}</b></span>"
    )
    causes = "".join(
        f"<p>{text(view.fleet.plain(f'{cause.who} {cause.what}'))}.</p>"
        for cause in report.causes[:3]
    )
    body = f'<div class="hf">{causes}{_waterfall(report)}{_facts(view, report)}</div>'
    return Panel(head=head(TITLE, keys=keys), body=body)


def _waterfall(report: RecoveryReport) -> str:
    """The phases below each other, each where it was in the time of the recovery."""
    total = report.total_s or 1.0
    was_killed = any("killed" in cause.what for cause in report.causes)
    rows = [_bar("killed" if was_killed else "failed", "--red", 0.0, 0.8, "0 ms")]
    ends = list(accumulate(report.seconds.values()))
    for (phase, seconds), end in zip(report.seconds.items(), ends, strict=True):
        words, color = _PHASES.get(phase, (phase, "--ink3"))
        left = 100 * (end - seconds) / total
        width = 100 * seconds / total
        rows.append(_bar(words, color, left, max(0.8, width), duration(end)))
    return f'<div class="wf">{"".join(rows)}</div>'


def _bar(words: str, color: str, left: float, width: float, end: str) -> str:
    return (
        f'<span class="mid nowrap">{text(words)}</span><span class="tr"><i style="--c:var({color});'
        f'left:{min(left, 99.2):.1f}%;width:{width:.1f}%"></i></span>'
        f'<span class="num nowrap">{end}</span>'
    )


def _facts(view: View, report: RecoveryReport) -> str:
    steps = count(report.recomputed_steps, "step")
    facts = [
        ("Others", others_in_words(report)),
        ("State", f"{state_from(report)}{_sent(report)}"),
        ("Recomputed", f"{steps}, {count(report.recomputed_samples, 'sample')}"),
        ("Generation", _generation(view, report)),
        ("Budget", _budget(view, report)),
        ("Outcome", _OUTCOMES[report.outcome]),
        ("Missing", named(report.missing) if report.missing else ""),
        ("Injected", text(", ".join({c.injected_fault for c in report.causes} - {""}))),
        (
            "Stack",
            text(report.causes[0].stack[0]) if report.causes and report.causes[0].stack else "",
        ),
    ]
    return (
        f"<dl>{''.join(f'<dt>{name}</dt><dd>{words}</dd>' for name, words in facts if words)}</dl>"
    )


def _sent(report: RecoveryReport) -> str:
    """Size of the state that joining workers received, and the time for it."""
    if report.state_bytes is None:
        return ""
    return f"; {size(report.state_bytes)} sent in {duration(report.seconds.get('state'))}"


def _budget(view: View, report: RecoveryReport) -> str:
    """Count of failures by then, of those that the run tolerates."""
    found = restart_budget(view.record, report.time_unix_s)
    return found.value.replace(" in ", " failures in ") if found.value != MISSING else ""


def _generation(view: View, report: RecoveryReport) -> str:
    """From which generation to which."""
    begin = report.time_unix_s - report.total_s
    numbers = [
        (float(event["time_unix_s"]), int(event["number"]))
        for event in view.record.events
        if event["event"] == "generation-started" and event["time_unix_s"] <= report.time_unix_s
    ]
    before = [number for at, number in numbers if at < begin]
    return f"{before[-1]} → {numbers[-1][1]}" if before and numbers[-1][1] > before[-1] else ""
