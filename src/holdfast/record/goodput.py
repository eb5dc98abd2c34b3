"""Goodput: which part of a run's time went into useful steps, and what took the rest.

    started ── generation ── step ─ step ─ step ── failure ── generation ── step … ended   started …
    └ initialization ──────┘ └ steps: each is ┘ └ detection, new generation, └ ending ┘ └ stopped ┘
                               split by what      state transfer, work done
                               its last worker    again
                               spends it on

Each second belongs to one cause. The times between two commits are split by what was measured in
them; those in which the workers changed, by what happened in them. Of these, as much is useful as a
usual step nearby takes. Pure: time is part of what it is told.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final, NamedTuple

NEAR_STEPS: Final = 16
"""Steps before and after a recovery that say how long a usual step takes."""
MAX_BUSY: Final = 1.5
"""By how much the times that a worker has measured may exceed those of its step."""
_COMPUTE: Final = ("forward", "backward", "collect")


class Cause(enum.StrEnum):
    """Use of a second of a run."""

    USEFUL = "useful"
    DATA = "data"
    IMBALANCE = "imbalance"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    VERIFICATION = "verification"
    FEWER_WORKERS = "fewer_workers"
    INITIALIZATION = "initialization"
    DETECTION = "detection"
    NEW_GENERATION = "new_generation"
    STATE_TRANSFER = "state_transfer"
    RECOMPUTED = "recomputed"
    STOPPED = "stopped"
    ENDING = "ending"


class EventKind(enum.Enum):
    """Kind of an event that matters to goodput."""

    STARTED = enum.auto()
    FAULT = enum.auto()
    FAILURE = enum.auto()
    RESUMED = enum.auto()
    SAVED = enum.auto()
    ENDED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputEvent:
    """Something that happened in a run.

    Attributes:
        at: Unix time, seconds.
        kind: Kind: an attempt has started, ended or failed, a fault was injected, something has
            failed, the workers of a generation have resumed, a checkpoint was committed.
        workers: `STARTED`: how many were asked for. `RESUMED`: how many are members.
        step: `RESUMED`: the steps in the state that all have. `SAVED`: those in the checkpoint.
        last_step: `RESUMED`: the most steps that a worker had committed before.
        is_silent: `FAILURE`: whether it was found by what did not happen, as a hang is.
    """

    at: float
    kind: EventKind
    workers: int = 0
    step: int = 0
    last_step: int = 0
    is_silent: bool = False


class Losses(NamedTuple):
    """Time between two commits, seconds, that was no useful work."""

    checkpoint: float = 0.0
    evaluation: float = 0.0
    data: float = 0.0
    imbalance: float = 0.0
    verification: float = 0.0

    def within(self, seconds: float) -> Losses:
        """These losses, as far as `seconds` can hold them."""
        left = max(0.0, seconds)
        kept = []
        for each in self:
            kept.append(min(max(0.0, each), left))
            left -= kept[-1]
        return Losses(*kept)


LOSSES: Final = tuple(Cause(name) for name in Losses._fields)
"""The causes in `Losses`, in order."""


def losses_of_step(
    workers: Mapping[str, Sequence[float]],
    verified: float,
    seconds: float,
    *,
    is_whole: bool = True,
) -> Losses:
    """Time that the worker which was last in a step lost in it.

    The time to compute its shards beyond what they would take under the best plan is imbalance:
    each worker's speed is its shards by its time, if all shards are equal.

    Args:
        workers: Seconds in each phase, an entry a member, and `shards`, as in `metrics.jsonl`.
        verified: The share of shards that are computed twice.
        seconds: Time of the step. A worker with much more in its phases has just begun, and
            counts those of the one that it replaces; it tells nothing.
        is_whole: True if the batch was whole: in a short one, shards may be empty.
    """
    nothing = (0.0,) * len(workers["shards"])
    data, evaluation, checkpoint, *compute = (
        workers.get(name, nothing) for name in ("data", "evaluate", "checkpoint", *_COMPUTE)
    )
    computed = [sum(each) for each in zip(*compute, strict=True)]
    busy = [sum(each) for each in zip(data, evaluation, checkpoint, computed, strict=True)]
    told = [place for place, spent in enumerate(busy) if spent <= MAX_BUSY * seconds]
    if not told:
        return Losses()
    last = max(told, key=busy.__getitem__)
    shards = [workers["shards"][place] for place in told]
    times = [computed[place] for place in told]
    rates = [n / spent for n, spent in zip(shards, times, strict=True) if n > 0 and spent > 0]
    best = sum(shards) / sum(rates) if rates and is_whole else fmean(times)
    imbalance = max(0.0, computed[last] - best)
    verification = (computed[last] - imbalance) * verified / (1 + verified)
    return Losses(checkpoint[last], evaluation[last], data[last], imbalance, verification)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedSteps:
    """The steps of a run as columns, an entry a step.

    Attributes:
        step: Its number, from 1, rising.
        at: Time of its commit, Unix time, seconds, never falling.
        losses: By cause in `LOSSES`: what it lost since the commit before, seconds.
        pauses: By row: the checkpoint and the evaluation before it, as the worker that writes the
            metrics has measured them. They count where workers have changed.
        evaluated: The newest step with an evaluation; 0 if there is none.
    """

    step: Sequence[int]
    at: Sequence[float]
    losses: Mapping[Cause, Sequence[float]]
    pauses: Mapping[int, Losses] = field(default_factory=dict)
    evaluated: int = 0


def attribute(steps: CommittedSteps, moments: Iterable[GoodputEvent]) -> dict[Cause, float]:
    """Seconds of a run by their cause; their sum is the time from first to last.

    Args:
        steps: The steps that count. Those that were computed again are in it once.
        moments: Other events, in any order.
    """
    ordered = sorted(moments, key=lambda each: each.at)
    spent = dict.fromkeys(Cause, 0.0)
    places = [place for place, each in enumerate(ordered) if each.kind is EventKind.STARTED]
    known = [*(each.at for each in ordered[:1]), *steps.at[:1]]
    if not known:
        return spent
    starts = [ordered[place] for place in places]
    if not starts or min(known) < starts[0].at:  # the event of the first start is missing
        places = [-1, *places]
        starts = [GoodputEvent(at=min(known), kind=EventKind.STARTED), *starts]
    first = 0
    ended = starts[0].at
    for number, (start, place) in enumerate(zip(starts, places, strict=True)):
        spent[Cause.STOPPED] += max(0.0, start.at - ended)
        is_last = number == len(starts) - 1
        stop = len(steps.at) if is_last else bisect_left(steps.at, starts[number + 1].at, first)
        own = ordered[place + 1 : None if is_last else places[number + 1]]
        attempt = _Attempt(steps, range(first, stop), start, spent)
        ended = attempt.attribute(own, is_last=is_last)
        first = stop
    return spent


class _Attempt:
    """One start of a run.

    Args:
        steps: Steps of the run.
        rows: Range of the steps of this attempt.
        start: Start of the attempt.
        spent: Sum to which its seconds are added.
    """

    def __init__(
        self, steps: CommittedSteps, rows: range, start: GoodputEvent, spent: dict[Cause, float]
    ) -> None:
        self._steps = steps
        self._rows = rows
        self._spent = spent
        self._start = start
        self._members = start.workers
        self._changed: frozenset[int] = frozenset()  # rows before which the workers changed

    def attribute(self, moments: Sequence[GoodputEvent], *, is_last: bool) -> float:
        """Add the seconds of the attempt; returns when it ended."""
        rows = self._rows
        at = self._steps.at
        before: dict[int, list[GoodputEvent]] = {}
        for each in moments:
            row = bisect_left(at, each.at, rows.start, rows.stop)
            before.setdefault(row, []).append(each)
        resumed = {
            row
            for row, its in before.items()
            if any(each.kind is EventKind.RESUMED for each in its)
        }
        self._changed = frozenset(resumed | {rows.start})
        done = rows.start
        for row in sorted(self._changed - {rows.stop}):
            self._add_steps(done, row)
            begin = self._begin(row)
            if row == rows.start:
                begin = self._add_initialization(row, before.get(row, []))
            if begin < at[row]:
                its = [each for each in before.get(row, []) if each.at > begin]
                self._add_recovery(begin, row, its)
            done = row + 1
        self._add_steps(done, rows.stop)
        return self._add_end(before.get(rows.stop, []), is_last=is_last)

    def _begin(self, row: int) -> float:
        """Time at which the step before `row` was committed, or the attempt started."""
        return self._steps.at[row - 1] if row > self._rows.start else self._start.at

    def _add_useful(self, seconds: float) -> None:
        asked = self._start.workers
        here = self._members
        missing = max(0.0, 1 - here / asked) if asked and here else 0.0
        self._spent[Cause.FEWER_WORKERS] += seconds * missing
        self._spent[Cause.USEFUL] += seconds * (1 - missing)

    def _add_steps(self, first: int, stop: int) -> None:
        """Add steps between which the workers did not change."""
        if first >= stop:
            return
        useful = self._steps.at[stop - 1] - self._begin(first)
        for cause, column in self._steps.losses.items():
            lost = sum(column[first:stop])
            self._spent[cause] += lost
            useful -= lost
        self._add_useful(max(0.0, useful))

    def _usual_s(self, row: int) -> float:
        """Usual time of a step near `row`, without evaluations and checkpoints; 0 if none tells.

        The median, since few are slow for reasons of their own.
        """
        near = (
            *range(row - 1, max(self._rows.start, row - 1 - NEAR_STEPS), -1),
            *range(row + 1, min(self._rows.stop, row + 1 + NEAR_STEPS)),
        )
        at = self._steps.at
        losses = self._steps.losses
        pauses = losses[Cause.CHECKPOINT], losses[Cause.EVALUATION]
        times = [
            max(0.0, at[each] - at[each - 1] - sum(pause[each] for pause in pauses))
            for each in near
            if each not in self._changed
        ]
        return median(times) if times else 0.0

    def _add_pauses(self, row: int, seconds: float) -> float:
        """Add the checkpoint and the evaluation before `row`; returns what is left of `seconds`."""
        pauses = self._steps.pauses.get(row, Losses()).within(seconds)
        self._spent[Cause.CHECKPOINT] += pauses.checkpoint
        self._spent[Cause.EVALUATION] += pauses.evaluation
        return seconds - pauses.checkpoint - pauses.evaluation

    def _add_initialization(self, row: int, moments: Sequence[GoodputEvent]) -> float:
        """Add the time to the first step of the attempt; returns up to when that was added: if
        something failed on the way, only until workers were ready for the first time.
        """
        begin = self._start.at
        end = self._steps.at[row]
        ready = next((each for each in moments if each.kind is EventKind.RESUMED), None)
        if ready is not None:
            self._members = ready.workers
            later = [each for each in moments if each.at > ready.at]
            if {EventKind.FAILURE, EventKind.RESUMED} <= {each.kind for each in later}:
                self._spent[Cause.INITIALIZATION] += ready.at - begin
                return ready.at
        since = begin if ready is None else ready.at
        left = self._add_pauses(row, end - since)
        useful = min(left, self._usual_s(row))
        self._add_useful(useful)
        self._spent[Cause.INITIALIZATION] += since - begin + left - useful
        return end

    def _add_recovery(self, begin: float, row: int, moments: Sequence[GoodputEvent]) -> None:
        """Add the time between two commits in which the workers changed.

        begin ── fault ── found ── resumed ── the commit of `row`
        """
        end = self._steps.at[row]
        usual = self._usual_s(row)
        resumed = [each for each in moments if each.kind is EventKind.RESUMED]
        self._members = resumed[-1].workers
        ready = resumed[-1].at
        step = min(each.step for each in resumed)
        after = self._add_pauses(row, end - ready)
        useful = min(after, usual)
        after -= useful
        last = self._steps.step[row - 1] if row > self._rows.start else step
        again = min(after, usual * max(0, last - step))  # of steps whose first times are known
        self._spent[Cause.RECOMPUTED] += again
        self._spent[Cause.STATE_TRANSFER] += after - again

        failures = [each for each in moments if each.kind is EventKind.FAILURE and each.at <= ready]
        if not failures:  # workers join or leave as planned
            kept = min(ready - begin, usual - useful)
            self._spent[Cause.NEW_GENERATION] += ready - begin - kept
            self._add_useful(useful + kept)
            return
        lost_steps = max(0, max(each.last_step for each in resumed) - step)
        is_lost = lost_steps > 0 and last <= step  # the first times of these steps are not known
        kept = self._add_failure(
            begin,
            ready,
            moments,
            useful_s=0.0 if is_lost else usual - useful,
            lost_s=usual * (1 + lost_steps),
        )
        self._add_useful(useful + kept)

    def _add_failure(
        self,
        begin: float,
        end: float,
        moments: Sequence[GoodputEvent],
        *,
        useful_s: float,
        lost_s: float,
    ) -> float:
        """Add the time from a commit until the failure after it is repaired, except for what is
        useful of it, which is returned.

        Args:
            begin: Time at which the step was committed.
            end: Time at which the failure was repaired.
            moments: In between.
            useful_s: Most work on the next step that is not lost.
            lost_s: Work that may be lost, if the failure was found late.
        """
        first = next(each for each in moments if each.kind is EventKind.FAILURE)
        faults = [
            each.at for each in moments if each.kind is EventKind.FAULT and each.at <= first.at
        ]
        fault = faults[0] if faults else first.at
        self._spent[Cause.DETECTION] += first.at - fault
        self._spent[Cause.NEW_GENERATION] += end - first.at
        useful = min(fault - begin, useful_s)
        lost = fault - begin - useful
        if first.is_silent and not faults:
            waited = max(0.0, lost - lost_s)
            self._spent[Cause.DETECTION] += waited
            lost -= waited
        self._spent[Cause.RECOMPUTED] += lost
        return useful

    def _add_end(self, moments: Sequence[GoodputEvent], *, is_last: bool) -> float:
        """Add the time after the last step; returns when the attempt ended."""
        rows = self._rows
        begin = self._begin(rows.stop)
        if not moments:
            return begin
        end = max(begin, moments[-1].at)
        kinds = {each.kind for each in moments}
        if not rows:
            self._spent[Cause.INITIALIZATION] += end - begin
        elif EventKind.FAILURE in kinds and EventKind.ENDED not in kinds:
            self._add_failure(begin, end, moments, useful_s=0.0, lost_s=0.0)
        elif EventKind.ENDED in kinds:
            done = self._add_last_pauses(begin, moments)
            self._spent[Cause.ENDING] += end - done
        elif EventKind.FAILED in kinds or not is_last:
            self._spent[Cause.RECOMPUTED] += end - begin
        else:  # it trains
            self._add_useful(end - begin)
        return end

    def _add_last_pauses(self, begin: float, moments: Sequence[GoodputEvent]) -> float:
        """Add the evaluation and the checkpoint after the last step; returns when they ended."""
        rows = self._rows
        steps = self._steps
        last = steps.step[rows.stop - 1] if rows else 0
        saved = [each.at for each in moments if each.kind is EventKind.SAVED and each.step == last]
        if not rows or not saved:
            return begin
        seconds = max(0.0, saved[0] - begin)
        evaluation = 0.0
        if steps.evaluated >= last:
            column = steps.losses[Cause.CHECKPOINT][rows.start : rows.stop]
            pauses = [each for each in column if each > 0]
            evaluation = seconds - min(seconds, median(pauses) if pauses else 0.0)
        self._spent[Cause.EVALUATION] += evaluation
        self._spent[Cause.CHECKPOINT] += seconds - evaluation
        return begin + seconds
