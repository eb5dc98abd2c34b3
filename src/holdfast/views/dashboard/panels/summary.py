"""Summary: whether the run is alive, how far it is, how good it is."""

from __future__ import annotations

from math import isnan

import numpy as np

from holdfast.record.state import StateName
from holdfast.record.units import MISSING, NBSP, count, digits, duration, size
from holdfast.record.views.metric import metric_of
from holdfast.record.views.pace import RECENT_S, epochs_of, goodput_of, left_s, mean_loss
from holdfast.views.dashboard.markup import Panel, text
from holdfast.views.dashboard.view import View

STATES = {
    StateName.STARTING: ("○", "Starting", "--ink2"),
    StateName.RUNNING: ('<span class="dot"></span>', "Running", "--kelp"),
    StateName.RECOVERING: ("↻", "Recovering", "--amber"),
    StateName.STALLED: ("‖", "Stalled", "--red"),
    StateName.FINISHED: ("✓", "Finished", "--blue"),
    StateName.STOPPED: ("■", "Stopped", "--amber"),
    StateName.FAILED: ("✕", "Failed", "--red"),
}
"""Icon, word and color of each state."""
READING = ("○", "Reading", "--ink2")
"""Summary while the steps of a long run are read."""
UNCHANGED = 0.01
"""The share of a loss by which it changes at least, if that is worth a word."""


def pill(view: View) -> Panel:
    """The state of the run, and how fresh it is."""
    icon, word, color = STATES[view.state.name] if not view.is_reading else READING
    return Panel(
        body=f'<div class="hf status"><span class="pill" style="--c:var({color})">{icon} {word}'
        f'</span><span class="dim no-p">{_freshness(view)}</span></div>'
    )


def _freshness(view: View) -> str:
    at = view.record.steps.columns["at"]
    if view.is_reading:
        return f"{view.record.steps.newest:,} steps, {100 * view.record.read_share:.0f}{NBSP}%"
    if view.has_ended:
        return f"after {duration(view.elapsed_s)}"
    failure = view.record.open_failure
    if failure is not None:
        return f"{duration(view.now - failure['time_unix_s'])} so far"
    return f"last step {duration(view.now - at[-1])} ago" if at else "no step yet"


def panel(view: View) -> Panel:
    """The six figures and the progress of the run."""
    figures = "".join(
        f'<div class="kpi"><div class="l">{label}</div><div class="v">{value}</div>'
        f'<div class="s">{note}</div></div>'
        for label, value, note in (
            _steps(view), _loss(view), _metric(view), _goodput(view), _failures(view),
            _checkpoint(view),
        )
    )  # fmt: skip
    return Panel(
        body=f'<div class="hf hero"><div class="kpis">{figures}</div>{_progress(view)}</div>'
    )


def _steps(view: View) -> tuple[str, str, str]:
    record = view.record
    total = view.record.total_steps
    newest = record.steps.newest
    of = f"<small>of {total:,}</small>" if total else ""
    if not view.has_steps:
        note = "no step" if view.has_ended else f"loading the task, {duration(view.elapsed_s)}"
        return "Step", f"0{of}", note
    epochs = epochs_of(record)
    epoch = f"epoch {epochs[0]:.1f} of {epochs[1]}" if epochs else ""
    if view.has_ended:
        return "Step", f"{newest:,}{of}", f"{epoch or 'ended'} in {duration(view.elapsed_s)}"
    left = left_s(view)
    remaining = f"{duration(left)} left" if left is not None else ""
    joint = " · " if epoch and remaining else ""
    return "Step", f"{newest:,}{of}", f'<span class="no-p">{epoch}{joint}</span>{remaining}'


def _loss(view: View) -> tuple[str, str, str]:
    columns = view.record.steps.columns
    losses = columns["loss"]
    if not losses:
        return "Training loss", MISSING, "no step yet"
    row = int(np.searchsorted(view.record.steps.array("at"), columns["at"][-1] - RECENT_S))
    mean = mean_loss(view.record)
    then = mean_loss(view.record, row)
    if isnan(then):
        return "Training loss", digits(mean), f"{digits(losses[0])} in the first step"
    if abs(mean - then) < UNCHANGED * abs(mean):
        return "Training loss", digits(mean), "unchanged for a minute"
    sign = "−" if mean < then else "+"
    return "Training loss", digits(mean), f"{sign}{abs(mean - then):.2g} in the last minute"


def _metric(view: View) -> tuple[str, str, str]:
    metric = metric_of(view.record)
    if metric is None:
        return "Accuracy", MISSING, "no evaluation yet"
    return text(metric.title), metric.shown(metric.values[-1]), f"step {metric.steps[-1]:,}"


def _goodput(view: View) -> tuple[str, str, str]:
    goodput = goodput_of(view)
    if goodput is None:
        note = "its samples are not known" if len(view.record.steps) > 1 else "no step yet"
        return "Goodput", MISSING, note
    rate, note = goodput
    if tokens := view.record.tokens_per_sample:
        note = f"{digits(rate * tokens)} tokens/s · {note}"
    return "Goodput", f"{digits(rate)}<small>samples/s</small>", note


def _failures(view: View) -> tuple[str, str, str]:
    reports = view.record.recoveries
    done = [each for each in reports if each.outcome in ("recovered", "restarted")]
    total = len(view.marks)
    if not total:
        return "Failures recovered", "0", "no failure"
    spent = sum(each.total_s for each in done)
    within = f", in {duration(spent)}" if done else ""
    steps = sum(each.recomputed_steps for each in reports)
    note = f"{count(steps, 'step')} recomputed"
    if view.record.open_failure is not None and not view.has_ended:
        note = "one in progress"
    return "Failures recovered", f"{len(done)}<small>of {total}{within}</small>", note


def _checkpoint(view: View) -> tuple[str, str, str]:
    saved = view.record.checkpoints
    if not saved:
        return "Last checkpoint", MISSING, "none yet"
    last = saved[-1]
    of = f" · {size(last.size_bytes)}" if last.size_bytes is not None else ""
    if view.has_ended and last.step == view.record.steps.newest:
        return "Last checkpoint", "final", f"step {last.step:,}{of}"
    age = duration(view.end - last.at)
    return "Last checkpoint", f"{age}<small>ago</small>", f"step {last.step:,}{of}"


def _progress(view: View) -> str:
    total = view.record.total_steps
    newest = view.record.steps.newest
    share = 100 * min(1.0, newest / total) if total else 0.0
    is_still = view.state.name in (StateName.STALLED, StateName.FAILED)
    color = ";background:var(--ink3)" if is_still else ""
    marks = "".join(
        f'<u style="left:{100 * mark.step / total:.2f}%"></u>' for mark in view.marks if total
    )
    return (
        f'<div class="prog" role="progressbar" aria-valuenow="{share:.0f}">'
        f'<i style="width:{share:.2f}%{color}"></i>{marks}</div>'
    )
