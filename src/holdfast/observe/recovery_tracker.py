"""Reckoning: makes receipts from a run's events and from the steps that it writes down.

    a loss ─▶ open ── all stand still, new ones forked ─▶ released ── a step is committed ─▶ closed
               ▲                                             │
               └─────────────── a further loss ──────────────┘

A receipt is closed too where the run ends before that step. Losses that come while one is open
belong to it. Which exits are failures, and which of them other failures have caused, the events
say (see `core.failures`). Pure: it is told everything, the time included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from holdfast.observe.recovery_reports import Cause, Outcome, RecoveryReport

LATE_STEPS: Final = 50
"""Steps after which the end of a process that is no worker has nothing to do with a fault: none of
them waits for it, and it may be found late."""
SEEN: Final = 1 << 14
"""How many of the newest steps are remembered with their samples; others count like the newest."""

_OF_THE_JOB: Final = frozenset({"JobError", "NonFiniteError"})
"""What ends a run though nothing was lost."""
_AGENT: Final = "agent"
_FORKS: Final = "fork-server"
_COORDINATOR: Final = "coordinator"

Entry = Mapping[str, Any]
"""A line of the events, or of the metrics."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A receipt that is being written.

    Attributes:
        causes, ended: As in `Receipt`.
        struck_at: When the first loss was brought about on purpose, or else found.
        found_at: When the first loss was found.
        forked, forked_at: Workers that were started since, and when the last one was.
        release: The generation in which all go on, once there is one.
    """

    causes: list[Cause] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    struck_at: float
    found_at: float
    forked: set[int] = field(default_factory=set)
    forked_at: float | None = None
    release: Entry | None = None
    reached: int = 0


class RecoveryTracker:
    """That of one run.

    Args:
        number: How many receipts it had before.
        tells_steps: Whether its steps are known; those of a script are not.
    """

    def __init__(self, number: int = 0, *, tells_steps: bool = True) -> None:
        self._number, self._tells_steps = number, tells_steps
        self._open: _Open | None = None
        self._began_at = 0.0
        self._members: tuple[int, ...] = ()
        self._samples: dict[int, int] = {}  # by step
        self._told: dict[tuple[str, int], Entry] = {}  # of living workers: event and process
        self._faults: dict[str, tuple[Entry, int]] = {}  # on purpose, by whom, and at which step

    @property
    def is_open(self) -> bool:
        """Whether something has been lost, and the run does not step again yet."""
        return self._open is not None

    def see(self, events: Iterable[Entry], steps: Iterable[Entry]) -> list[RecoveryReport]:
        """Take note of what has happened; returns the receipts that are complete with it.

        Args:
            events: New ones.
            steps: The newest lines of the run's metrics, as many as are at hand, whether they have
                been seen before or not.
        """
        timed = (line for line in steps if "time_unix_s" in line)
        found = [self._see(each) for each in sorted([*events, *timed], key=_time)]
        return [receipt for receipt in found if receipt is not None]

    def _see(self, entry: Entry) -> RecoveryReport | None:
        match entry.get("event"):
            case None:
                return self._step(entry)
            case "run-started":
                self._began_at, self._members = _time(entry), ()
                self._told.clear()
            case "fault-injected":
                self._blame(entry)
            case "worker-started":
                self._note_start(entry)
            case "worker-hung" | "worker-stack":
                self._told[entry["event"], entry["pid"]] = entry
            case "worker-exited":
                self._lose_worker(entry)
            case "agent-exited" | "fork-server-exited" | "coordinator-exited":
                self._lose_process(entry)
            case "generation-started":
                self._release(entry)
                return None if self._tells_steps else self._close(entry, "restarted")
            case "coordinator-recovered":
                return self._back(entry)
            case "run-ended":
                return self._close(entry, "ended")
            case "run-failed":
                return self._fail(entry)
        return None

    def _blame(self, fault: Entry) -> None:
        """Note what is done on purpose; whom it befell may have been found before it was told."""
        who, known = _who(fault), self._open
        if known is not None:
            for index, cause in enumerate(known.causes):
                if cause.who == who and not cause.injected_fault:
                    known.causes[index] = replace(cause, injected_fault=fault["kind"])
                    return
        self._faults[who] = fault, self._newest_step

    def _note_start(self, event: Entry) -> None:
        if self._open is not None:
            self._open.forked.add(event["rank"])
            self._open.forked_at = _time(event)

    def _lose_worker(self, event: Entry) -> None:
        rank, pid = event["rank"], event["pid"]
        hung, stack = (
            self._told.pop((name, pid), None) for name in ("worker-hung", "worker-stack")
        )
        if not event["unexpected"]:
            if self._open is not None:
                self._open.ended.add(rank)
            return
        cause = Cause(
            who=_who(event),
            rank=rank,
            what=f"hung: it {hung['reason']}" if hung else _what(event),
            stack=tuple(stack["frames"]) if stack else (),
        )
        self._lose(cause, _time(hung or event))

    def _lose_process(self, event: Entry) -> None:
        who = _who(event)
        causes = [] if self._open is None else self._open.causes
        followed = who == _AGENT and any(cause.who == _FORKS for cause in causes)
        if event["status"] == 0 or followed:
            return  # it left as told, or with those who forked for it
        victims = () if who == _COORDINATOR else self._members
        if victims:
            self._told.clear()  # their ends are not told of
        self._lose(Cause(who=who, what=event["cause"]), _time(event), victims)

    def _lose(self, cause: Cause, now: float, victims: Iterable[int] = ()) -> None:
        fault, struck_in = self._faults.pop(cause.who, (None, 0))
        if self._newest_step > struck_in + (1 if cause.rank is not None else LATE_STEPS):
            fault = None  # the run got on with that one
        if fault is not None:
            cause = replace(cause, injected_fault=fault["kind"])
        if self._open is None:
            struck_at = now if fault is None else min(now, _time(fault))
            self._open = _Open(struck_at=struck_at, found_at=now)
        self._open.causes.append(cause)
        self._open.ended.update(victims)
        self._open.release = None

    def _release(self, event: Entry) -> None:
        if self._open is None:
            self._members = tuple(event["members"])
            return
        self._open.release = event
        self._open.reached = max(self._open.reached, event["last_committed_step"])

    @property
    def _newest_step(self) -> int:
        return max(self._samples, default=0)

    def _step(self, line: Entry) -> RecoveryReport | None:
        """A line of the metrics, perhaps not for the first time."""
        release = None if self._open is None else self._open.release
        if release is not None and _time(line) > _time(release):
            return self._close(line, "recovered", step=line["step"])
        if _time(line) >= self._began_at:
            self._samples[line["step"]] = line.get("samples", 0)
            while len(self._samples) > SEEN:
                del self._samples[next(iter(self._samples))]
        return None

    def _back(self, event: Entry) -> RecoveryReport | None:
        """No step waits for a coordinator: the recovery of one is over when it is back."""
        if self._open is None or any(cause.who != _COORDINATOR for cause in self._open.causes):
            return None
        return self._close(event, "recovered")

    def _fail(self, event: Entry) -> RecoveryReport | None:
        if self._open is None or event["error"] in _OF_THE_JOB:
            self._open = None
            return None
        self._open.ended.update(self._members)
        return self._close(event, "failed")

    def _close(
        self, last: Entry, outcome: Outcome, step: int | None = None
    ) -> RecoveryReport | None:
        """Complete the receipt, if one is open; `step` is the first that was committed since."""
        if self._open is None:
            return None
        known, self._open = self._open, None
        self._number += 1
        reached = max(known.reached, self._newest_step)
        start, restored, staying = reached, False, self._members
        if known.release is not None:
            start, restored = known.release["step"], known.release["from_checkpoint"]
            staying = tuple(known.release["members"])
        if restored and step is not None:
            start = step - 1  # a checkpoint may have been refused
        again = range(start + 1, reached + 1)
        usual = self._samples.get(self._newest_step, 0)
        lost = {cause.rank for cause in known.causes}
        gone = known.ended | known.forked | lost
        receipt = RecoveryReport(
            number=self._number,
            time_unix_s=_time(last),
            outcome=outcome,
            causes=tuple(known.causes),
            step=reached,
            ended=tuple(sorted(known.ended - lost)),
            halted=tuple(rank for rank in staying if known.release and rank not in gone),
            seconds=_phases(known, _time(last), outcome),
            total_s=round(_time(last) - known.struck_at, 3),
            checkpoint=start if restored else None,
            recomputed_steps=len(again),
            recomputed_samples=sum(self._samples.get(each, usual) for each in again),
        )
        self._members = staying
        self._samples = {each: n for each, n in self._samples.items() if each <= start}
        return receipt


def _phases(known: _Open, end: float, outcome: Outcome) -> dict[str, float]:
    """How long each phase took, seconds."""
    marks = [("struck", known.struck_at)]
    if known.found_at > known.struck_at:
        marks.append(("found", known.found_at))
    if known.forked_at is not None:
        marks.append(("forked", known.forked_at))
    if known.release is not None:
        marks.append(("all ready", _time(known.release)))
    if outcome == "recovered":
        marks.append(("next step" if known.release else "back", end))
    return {name: round(max(0.0, at - then), 3) for (_, then), (name, at) in pairwise(marks)}


def _what(exited: Entry) -> str:
    """What has happened to a worker, its name left out; errors of ours have sentences of theirs."""
    cause, name = str(exited["cause"]), f"rank {exited['rank']} "
    if not exited["error"] or cause.startswith(name):
        return cause.removeprefix(name)
    return f"raised {exited['error']}: {cause}"


def _who(event: Entry) -> str:
    """Whom a fault strikes or who has exited, as in `Cause`."""
    if "rank" in event:
        return f"rank {event['rank']}"
    struck = event["event"] == "fault-injected"
    return str(event["kind"] if struck else event["event"].removesuffix("-exited"))


def _time(entry: Entry) -> float:
    return float(entry["time_unix_s"])
