"""Plain lines: a run in a pipe: how it is doing every few seconds, and what happens in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import isnan
from typing import Final

from holdfast.record import history
from holdfast.record.moments import is_failure
from holdfast.record.recovery_reports import RecoveryReport, causes_in_words, state_from
from holdfast.record.units import NBSP, count, digits, duration
from holdfast.record.views.metric import metric_of
from holdfast.record.views.pace import epochs_of, left_s, mean_loss, pace_of
from holdfast.record.views.run_at import RunAt

INTERVAL_S: Final = 5.0
_SHOWN: Final = ("checkpoint-committed", "host-joined", "stop-requested", "run-ended", "run-failed")
"""Events that get a line, besides failures."""


class PlainLines:
    """Status lines for a pipe: periodic state, and events since the start."""

    def __init__(self) -> None:
        self._events = self._recoveries = -1
        self._said = ""
        self._said_at = 0.0

    def news(self, run: RunAt) -> Iterator[str]:
        """The lines for what has changed since the last call."""
        record = run.record
        if self._events >= 0:
            yield from self._happened(run)
        self._events = len(record.events)
        self._recoveries = len(record.recoveries)
        status = status_of(run)
        word = run.state.name
        is_new_state = not self._said.startswith(word)
        is_due = status != self._said and run.now - self._said_at >= INTERVAL_S
        if is_new_state or is_due or (run.has_ended and status != self._said):
            self._said = status
            self._said_at = run.now
            yield f"{_clock(run.now)}  {status}"

    def _happened(self, run: RunAt) -> Iterator[str]:
        record = run.record
        found = [
            (event["time_unix_s"], history.words(event))
            for event in record.events[self._events :]
            if is_failure(event) or event["event"] in _SHOWN
        ]
        found += [
            (each.time_unix_s, recovery_in_words(each))
            for each in record.recoveries[self._recoveries :]
        ]
        for at, words in sorted(found):
            yield f"{_clock(at)}  {words}".replace(NBSP, " ")


def status_of(run: RunAt) -> str:
    """State of a run, in a line."""
    record = run.record
    metric = metric_of(run.record)
    pace = pace_of(run)
    total = record.total_steps
    epochs = epochs_of(run.record)
    loss = mean_loss(run.record)
    left = None if run.has_ended else left_s(run)
    goodput = pace.goodput if pace and not run.has_ended else None
    tokens = record.tokens_per_sample
    facts = [
        run.state.name,
        f"step {record.steps.newest:,}{f'/{total:,}' if total else ''}",
        f"epoch {epochs[0]:.1f} of {epochs[1]}" if epochs else "",
        "" if isnan(loss) else f"loss {digits(loss)}",
        f"{metric.title.lower()} {metric.shown(metric.values[-1])}" if metric else "",
        f"{digits(goodput)} samples/s" if goodput is not None else "",
        f"{digits(goodput * tokens)} tokens/s" if goodput and tokens else "",
        f"{duration(left)} left" if left is not None else "",
        run.state.reason,
    ]
    return "  ".join(" ".join(each.split()) for each in facts if each).replace(NBSP, " ")


def recovery_in_words(report: RecoveryReport) -> str:
    """A recovery in a line."""
    if report.outcome == "recovered":
        steps = count(report.recomputed_steps, "step")
        then = f"in {duration(report.total_s)}, {steps} recomputed, state from {state_from(report)}"
    else:
        then = duration(report.total_s)
    words = f"recovery {report.number}: {causes_in_words(report)}; {report.outcome} {then}"
    return words.replace("state from kept", "state kept")


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
