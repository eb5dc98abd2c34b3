"""RecoveryTracker: makes recovery reports from a run's events and from the steps that it logs.

    a failure ─▶ open ── all workers halted or forked ─▶ resumed ── a step is committed ─▶ closed
                  ▲                                         │
                  └──────────── a further failure ──────────┘

A report is also closed if the run ends before that step. Failures while one is open belong to it.
The events say which exits are failures, and which of them are cascading (see `core.failures`).
Pure: time is part of what it is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from holdfast.errors import OutOfMemory
from holdfast.record.recovery_reports import Outcome, RecoveryReport, RootCause
from holdfast.record.whereabouts import Whereabouts, missing, whereabouts

LATE_STEPS: Final = 50
"""Steps after which the exit of a control process has nothing to do with an injected fault. No step
waits for such a process, so its exit may be found late."""
SKEW_S: Final = 2.0
"""Most that the clocks of hosts may be apart."""
MAX_REMEMBERED_STEPS: Final = 1 << 14
"""Count of newest steps that are remembered with their samples; others count as the newest."""

_OF_THE_JOB: Final = frozenset({"JobError", "NonFiniteError"})
"""Errors that end a run without a failure."""
_AGENT: Final = "agent"
_FORKS: Final = "fork-server"
_COORDINATOR: Final = "coordinator"
_HOST: Final = "host"

Entry = Mapping[str, Any]
"""A line of the events, or of the metrics."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A recovery that is not over.

    Attributes:
        causes, ended: Fields of `RecoveryReport`.
        began_at: Time at which the first failure was injected, or else found.
        found_at: Time at which the first failure was found.
        forked, forked_at: Workers that were started since, and when the last one was.
        halted_at: Time at which the last of the other workers halted.
        resumed: The event of the generation in which all resumed, once there is one.
        last_step: The most steps that a worker had committed before.
    """

    causes: list[RootCause] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    began_at: float
    found_at: float
    forked: set[int] = field(default_factory=set)
    forked_at: float | None = None
    halted_at: float | None = None
    resumed: Entry | None = None
    last_step: int = 0


class RecoveryTracker:
    """Tracks the recoveries of one run.

    Args:
        number: Count of reports that the run had before.
        waits_for_steps: True if a run that has made no step yet will make some; a script may not.
    """

    def __init__(self, number: int = 0, *, waits_for_steps: bool = True) -> None:
        self._number = number
        self._waits_for_steps = waits_for_steps
        self._open: _Open | None = None
        self._began_at = 0.0
        self._members: tuple[int, ...] = ()
        self._samples: dict[int, int] = {}  # by step
        self._hangs: dict[tuple[str, int], Entry] = {}  # by event and process
        self._observed: dict[tuple[int, int], Entry] = {}  # by generation and rank
        self._faults: dict[str, tuple[Entry, int]] = {}  # by target, with the newest step

    @property
    def is_open(self) -> bool:
        """True if something has failed, and the run does not make progress again yet."""
        return self._open is not None

    def see(self, events: Iterable[Entry], steps: Iterable[Entry]) -> list[RecoveryReport]:
        """Take note of what has happened; returns the reports that are complete now.

        Args:
            events: New events.
            steps: The newest lines of the run's metrics, whether they have been seen before or not.
        """
        # Steps that were counted do not say where a script resumes.
        told = (line for line in steps if line.keys() >= {"step", "time_unix_s"})
        timed = (line for line in told if "counted" not in line)
        reports = [self._see(each) for each in sorted([*events, *timed], key=_time)]
        return [report for report in reports if report is not None]

    def _see(self, entry: Entry) -> RecoveryReport | None:
        match entry.get("event"):
            case None:
                return self._on_step(entry)
            case "run-started":
                self._began_at = _time(entry)
                self._members = ()
                self._hangs.clear()
                self._observed.clear()
            case "fault-injected":
                self._note_fault(entry)
            case "worker-started":
                self._note_start(entry)
            case "worker-hung" | "worker-stack" | "worker-observed":
                self._note_hang(entry)
            case "worker-exited":
                self._on_worker_exit(entry)
            case "agent-exited" | "fork-server-exited" | "coordinator-exited" | "host-lost":
                self._on_control_loss(entry)
            case "generation-started":
                self._on_generation(entry)
                is_over = not (self._waits_for_steps or self._newest_step)
                return self._close(entry, "restarted") if is_over else None
            case "coordinator-recovered":
                return self._on_coordinator_recovered(entry)
            case "run-ended":
                return self._close(entry, "ended")
            case "run-failed":
                return self._on_run_failed(entry)
        return None

    def _has_cause(self, who: str) -> bool:
        return self._open is not None and any(cause.who == who for cause in self._open.causes)

    def _note_fault(self, fault: Entry) -> None:
        """Note an injected fault; its effect may have been found before."""
        who = _who(fault)
        known = self._open
        if known is not None:
            for index, cause in enumerate(known.causes):
                if cause.who == who and not cause.injected_fault:
                    known.causes[index] = replace(cause, injected_fault=fault["kind"])
                    return
        self._faults[who] = fault, self._newest_step

    def _note_hang(self, event: Entry) -> None:
        """Note what is known of a worker while one hangs."""
        if event["event"] == "worker-observed":
            self._observed[event["generation"], event["rank"]] = event
        else:
            self._hangs[event["event"], event["pid"]] = event

    def _note_start(self, event: Entry) -> None:
        if self._open is not None:
            self._open.forked.add(event["rank"])
            self._open.forked_at = _time(event)

    def _on_worker_exit(self, event: Entry) -> None:
        rank = event["rank"]
        pid = event["pid"]
        hung, stack = (
            self._hangs.pop((name, pid), None) for name in ("worker-hung", "worker-stack")
        )
        if not event["unexpected"]:
            if self._open is not None:
                self._open.ended.add(rank)
            return
        cause = RootCause(
            who=_who(event),
            rank=rank,
            what=f"hung: it {hung['reason']}" if hung else _what(event),
            stack=tuple(stack["frames"]) if stack else (),
        )
        self._add_cause(cause, _time(hung or event))

    def _on_control_loss(self, event: Entry) -> None:
        """Note the exit of a control process, or that a host does not answer."""
        who = _who(event)
        if who == _HOST:
            if not self._has_cause(_AGENT):  # its exit says more
                cause = RootCause(who=who, what=f"{event['host']} does not answer")
                self._add_cause(cause, _time(event), event["ranks"])
            return
        if event["status"] == 0 or (who == _AGENT and self._has_cause(_FORKS)):
            return  # it left as told, or because it has no fork server
        ended = () if who == _COORDINATOR else self._members
        if ended:
            self._hangs.clear()  # their exits are not logged
        self._add_cause(RootCause(who=who, what=event["cause"]), _time(event), ended)

    def _add_cause(self, cause: RootCause, now: float, ended: Iterable[int] = ()) -> None:
        fault, injected_in = self._faults.pop(cause.who, (None, 0))
        if self._newest_step > injected_in + (1 if cause.rank is not None else LATE_STEPS):
            fault = None  # the run has recovered from that one
        if fault is not None:
            cause = replace(cause, injected_fault=fault["kind"])
        if self._open is None:
            began_at = now if fault is None else min(now, _time(fault))
            self._open = _Open(began_at=began_at, found_at=now)
        self._open.causes.append(cause)
        self._open.ended.update(ended)
        self._open.resumed = None

    def _on_generation(self, event: Entry) -> None:
        if self._open is None:
            self._members = tuple(event["members"])
            return
        self._open.resumed = event
        halted_at = [self._open.halted_at, event.get("halted_at")]  # of several hosts, the last one
        self._open.halted_at = max((at for at in halted_at if at is not None), default=None)
        self._open.last_step = max(self._open.last_step, event["last_committed_step"])

    @property
    def _newest_step(self) -> int:
        return max(self._samples, default=0)

    def _on_step(self, line: Entry) -> RecoveryReport | None:
        """Note a line of the metrics, which may have been seen before."""
        resumed = None if self._open is None else self._open.resumed
        if resumed is not None and _time(line) > _time(resumed):
            return self._close(line, "recovered", step=line["step"])
        if _time(line) >= self._began_at:
            self._samples[line["step"]] = line.get("samples", 0)
            while len(self._samples) > MAX_REMEMBERED_STEPS:
                del self._samples[next(iter(self._samples))]
        return None

    def _on_coordinator_recovered(self, event: Entry) -> RecoveryReport | None:
        """No step waits for a coordinator: the recovery of one is over when it is back."""
        if self._open is None or any(cause.who != _COORDINATOR for cause in self._open.causes):
            return None
        return self._close(event, "recovered")

    def _on_run_failed(self, event: Entry) -> RecoveryReport | None:
        if self._open is None or event["error"] in _OF_THE_JOB:
            self._open = None
            return None
        self._open.ended.update(self._members)
        return self._close(event, "failed")

    def _close(
        self, last: Entry, outcome: Outcome, step: int | None = None
    ) -> RecoveryReport | None:
        """Complete the report, if one is open; `step` is the first that was committed since."""
        if self._open is None:
            return None
        recovery = self._open
        self._open = None
        self._number += 1
        last_step = max(recovery.last_step, self._newest_step)
        start = last_step
        restored = False
        members = self._members
        if recovery.resumed is not None:
            start = recovery.resumed["step"]
            restored = recovery.resumed["from_checkpoint"]
            members = tuple(recovery.resumed["members"])
        if restored and step is not None:
            start = step - 1  # a newer checkpoint may have been rejected
        begin = last_step if outcome == "restarted" else start
        recomputed = range(begin + 1, last_step + 1)
        usual = self._samples.get(self._newest_step, 0)
        # A script may report the samples of several steps at once.
        reported = range(min(self._samples, default=0), self._newest_step)
        failed = {cause.rank for cause in recovery.causes}
        where = self._whereabouts(recovery)
        gone = recovery.ended | recovery.forked | failed
        report = RecoveryReport(
            number=self._number,
            time_unix_s=_time(last),
            outcome=outcome,
            causes=tuple(recovery.causes),
            step=last_step,
            ended=tuple(sorted(recovery.ended - failed)),
            halted=tuple(rank for rank in members if recovery.resumed and rank not in gone),
            seconds=_phases(recovery, last, outcome),
            total_s=round(_time(last) - recovery.began_at, 3),
            checkpoint=start if restored else None,
            recomputed_steps=len(recomputed),
            recomputed_samples=sum(
                self._samples.get(each, 0 if each in reported else usual) for each in recomputed
            ),
            state_bytes=last.get("transferred", {}).get("size_bytes"),
            whereabouts=where,
            missing=missing(where),
        )
        self._members = members
        self._samples = {each: n for each, n in self._samples.items() if each <= start}
        return report

    def _whereabouts(self, recovery: _Open) -> tuple[Whereabouts, ...]:
        """Places of the workers, if the others had to wait until the failure was found."""
        found = self._observed
        self._observed = {}
        causes = recovery.causes
        silent = [each for each in causes if each.who == _HOST or each.what.startswith("hung")]
        # An event of another host may come so late that it belongs to the recovery before.
        of = {key: each for key, each in found.items() if _time(each) > recovery.began_at - SKEW_S}
        if not (silent and of):
            return ()
        newest = max(number for number, _ in of)
        observed = [each for (number, _), each in of.items() if number == newest]
        return whereabouts(observed, {c.rank: c.stack for c in causes if c.rank is not None})


def _phases(recovery: _Open, last: Entry, outcome: Outcome) -> dict[str, float]:
    """Time that each phase took, seconds; `last` is what the recovery ended with."""
    marks = [("began", recovery.began_at)]
    if recovery.found_at > recovery.began_at:
        marks.append(("found", recovery.found_at))
    found = [("halted", recovery.halted_at), ("forked", recovery.forked_at)]
    marks += sorted(((name, at) for name, at in found if at is not None), key=lambda each: each[1])
    if recovery.resumed is not None:
        marks.append(("all ready", _time(recovery.resumed)))
    for key, name in (("loaded", "loaded"), ("transferred", "state")):
        if key in last:
            marks.append((name, _time(last[key])))
    if outcome == "recovered":
        marks.append(("next step" if recovery.resumed else "back", _time(last)))
    return {name: round(max(0.0, at - then), 3) for (_, then), (name, at) in pairwise(marks)}


def _what(exited: Entry) -> str:
    """Failure of a worker in words, without its name; our own errors are sentences of their own."""
    cause = str(exited["cause"])
    is_sentence = exited["error"] not in ("", OutOfMemory.__name__)
    return f"raised {exited['error']}: {cause}" if is_sentence else cause


def _who(event: Entry) -> str:
    """The target of a fault, or what has exited, as in `RootCause`."""
    if "rank" in event:
        return f"rank {event['rank']}"
    is_fault = event["event"] == "fault-injected"
    name = event["event"].removesuffix("-exited").removesuffix("-lost")
    return str(event["kind"] if is_fault else name)


def _time(entry: Entry) -> float:
    return float(entry["time_unix_s"])
