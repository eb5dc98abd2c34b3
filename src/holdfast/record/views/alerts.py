"""Alerts of a run: the rules of `alert_rules`, evaluated on its record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from holdfast.record import alert_rules, breakdown
from holdfast.record.alert_rules import CHECKPOINT_FAILURE_CAUSES, AlertRule
from holdfast.record.live_state import FailureWindow, Roster
from holdfast.record.run_record import RunRecord
from holdfast.record.units import MISSING, NBSP, digits, duration, percent

RECENT_STEPS: Final = 20
"""In how many steps the imbalance is measured."""
_MAX_ROWS: Final = 60
"""In how many steps it is measured for an alert that lasts."""
_STALE_S: Final = 60.0
"""Age from which a measurement says nothing about now."""

Measured = Iterable[tuple[float, float]]
"""Times, Unix time, seconds, and values; the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """State of a rule.

    Attributes:
        rule: The rule.
        value: Its value now, in words.
        since: Time since which it fires, Unix time, seconds; None if it does not.
    """

    rule: AlertRule
    value: str
    since: float | None = None

    @property
    def is_firing(self) -> bool:
        """True if a person should look at it."""
        return self.since is not None


def alerts_of(record: RunRecord, now: float) -> list[Alert]:
    """The rules for such a run, those that fire first, by severity.

    Args:
        record: A run that trains.
        now: Unix time, seconds.
    """
    found = [evaluate(record, now) for evaluate in _RULES if _applies(evaluate, record)]
    return sorted(found, key=lambda each: (not each.is_firing, each.rule.severity))


def _no_step(record: RunRecord, now: float) -> Alert:
    at = record.steps.columns["at"]
    last = max([_started_at(record, now), *at[-1:]])
    value = f"{duration(now - last)} ago" if at else "no step yet"
    return Alert(rule=alert_rules.NO_STEP, value=value, since=_past(last, alert_rules.NO_STEP, now))


def _worker_lost(record: RunRecord, now: float) -> Alert:
    workers = Roster()
    counts: list[tuple[float, float]] = []
    for event in record.events:
        workers.take(event)
        if event["event"] == "generation-started":
            counts.append((event["time_unix_s"], workers.missing))
    if not counts:
        return Alert(rule=alert_rules.WORKER_LOST, value=MISSING)
    since = _lasting(reversed(counts), lambda lost: lost > 0, alert_rules.WORKER_LOST, now)
    present = workers.desired - counts[-1][1]
    value = f"{present:.0f} of {workers.desired} present"
    return Alert(rule=alert_rules.WORKER_LOST, value=value, since=since)


def restart_budget(record: RunRecord, now: float) -> Alert:
    """The restart budget: failures up to `now`, of those that a run tolerates."""
    rule = alert_rules.RESTART_BUDGET
    restarts = record.job.restarts if record.job else None
    if restarts is None:
        return Alert(rule=rule, value=MISSING)
    failures = FailureWindow(restarts.window_s)
    for event in record.events:
        failures.take(event)
    failed_at = failures.until(now)
    used = len(failed_at)
    limit = restarts.limit
    value = f"{used} of {limit} in {duration(restarts.window_s)}"
    enough = next((n for n in range(1, used + 1) if limit and n / limit >= rule.limit), None)
    return Alert(rule=rule, value=value, since=failed_at[enough - 1] if enough else None)


def _checkpoint_age(record: RunRecord, now: float) -> Alert:
    saved = record.checkpoints
    last = max([_started_at(record, now), *(each.at for each in saved[-1:])])
    value = duration(now - last) if saved else "none yet"
    return Alert(
        rule=alert_rules.CHECKPOINT_AGE,
        value=value,
        since=_past(last, alert_rules.CHECKPOINT_AGE, now),
    )


def _checkpoint_failures(record: RunRecord, now: float) -> Alert:
    rule = alert_rules.CHECKPOINT_FAILURES
    failed = [
        event
        for event in record.events
        if event["event"] in CHECKPOINT_FAILURE_CAUSES and event["time_unix_s"] > now - rule.limit
    ]
    if not failed:
        return Alert(rule=rule, value="none failed")
    causes = dict.fromkeys(CHECKPOINT_FAILURE_CAUSES[event["event"]] for event in failed)
    value = f"{len(failed)} failed: {', '.join(causes)}"
    return Alert(rule=rule, value=value, since=failed[0]["time_unix_s"])


def _imbalance(record: RunRecord, now: float) -> Alert:
    rule = alert_rules.IMBALANCE
    at = record.steps.columns["at"]
    rows = record.workers(RECENT_STEPS)
    newest = breakdown.imbalance([breakdown.busy_s(row) for row in rows])
    if newest is None:
        return Alert(rule=rule, value=MISSING)
    begin = now - rule.lasts_s - 1
    kept = [(at[row], workers) for row, workers in record.steps.workers if at[row] >= begin]
    kept = kept[:: max(1, len(kept) // _MAX_ROWS)]
    busy = ((moment, breakdown.busy_of(workers)) for moment, workers in kept)
    measured = [(moment, breakdown.imbalance(each) or 0.0) for moment, each in busy]
    measured = [(now, newest), *reversed(measured)]
    since = _lasting(measured, lambda each: each > rule.limit, rule, now)
    return Alert(rule=rule, value=percent(newest), since=since)


def _gpu_utilization(record: RunRecord, now: float) -> Alert:
    rule = alert_rules.GPU_UTILIZATION
    return _of_gpus(
        record,
        "utilization",
        rule,
        now,
        is_bad=lambda used: used < rule.limit,
        worst=("lowest", min, lambda used: f"{100 * used:.0f}{NBSP}%"),
    )


def _gpu_temperature(record: RunRecord, now: float) -> Alert:
    rule = alert_rules.GPU_TEMPERATURE
    return _of_gpus(
        record,
        "temperature_c",
        rule,
        now,
        is_bad=lambda celsius: celsius > rule.limit,
        worst=("highest", max, lambda celsius: f"{digits(celsius)}{NBSP}°C"),
    )


def _of_gpus(
    record: RunRecord,
    column: str,
    rule: AlertRule,
    now: float,
    *,
    is_bad: Callable[[float], bool],
    worst: tuple[str, Callable[..., Any], Callable[[float], str]],
) -> Alert:
    """A rule about each GPU, by the worst one."""
    word, choose, shown = worst
    newest: dict[str, float] = {}
    firing: list[float] = []
    for name, now_is, measured in _gpu_series(record, column, now):
        newest[name] = now_is
        since = _lasting(measured, is_bad, rule, now)
        if since is not None:
            firing.append(since)
    if not newest:
        return Alert(rule=rule, value="no GPU")
    name = choose(newest, key=newest.__getitem__)
    value = f"{word} {shown(newest[name])}, {name}"
    return Alert(rule=rule, value=value, since=min(firing, default=None))


def _gpu_series(
    record: RunRecord, column: str, now: float
) -> Iterator[tuple[str, float, Measured]]:
    """Each GPU that reports it: its name for people, the newest value, and all of them."""
    for host, lines in record.system.items():
        if now - lines[-1]["time_unix_s"] > _STALE_S:
            continue  # its host is gone
        for gpu in lines[-1].get("gpus", ()):
            if gpu.get(column) is not None:
                name = f"GPU {gpu['index']} of {host}"
                yield name, float(gpu[column]), _of_gpu(lines, int(gpu["index"]), column)


def _of_gpu(lines: Sequence[Mapping[str, Any]], index: int, column: str) -> Measured:
    for line in reversed(lines):
        for gpu in line.get("gpus", ()):
            if gpu["index"] == index and gpu.get(column) is not None:
                yield line["time_unix_s"], gpu[column]


def _lasting(
    measured: Measured, is_bad: Callable[[float], bool], rule: AlertRule, now: float
) -> float | None:
    """Time since which a rule fires; None if it does not. No more is read than that needs."""
    begin = inf
    for at, value in measured:
        if not is_bad(value):
            break
        begin = at
    return begin + rule.lasts_s if now - begin >= rule.lasts_s else None


def _past(last: float, rule: AlertRule, now: float) -> float | None:
    """Time since which a rule about an age fires; None if it does not."""
    return last + rule.limit if now - last > rule.limit else None


def _started_at(record: RunRecord, now: float) -> float:
    """Begin of the newest attempt, Unix time, seconds."""
    started = (event for event in reversed(record.events) if event["event"] == "run-started")
    return float(next(started, {"time_unix_s": now})["time_unix_s"])


def _applies(rule: Callable[..., Alert], record: RunRecord) -> bool:
    """False for rules on what a script keeps to itself."""
    if rule is _checkpoint_age:
        return record.job is None or record.job.records_progress
    return rule is not _no_step or record.counts_steps


_RULES: Final = (
    _no_step,
    _gpu_utilization,
    _gpu_temperature,
    _worker_lost,
    restart_budget,
    _checkpoint_age,
    _checkpoint_failures,
    _imbalance,
)
