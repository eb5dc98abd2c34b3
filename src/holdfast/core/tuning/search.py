"""Search: the state of a search, and what it does next.

    asked ─▶ started ─▶ evaluated, evaluated, … ─▶ ended: finished, stopped or failed
               ▲            │       └─▶ stopping: a stop rule, or the budget, ends the trial early
               └────────────┘ its process, or the whole search, died: the same trial continues

The state is folded from the lines of the search's record, so a search that was killed continues
from its record alone. A trial without a line `ended` is open.

Where the trials are a population, each trains for a generation and is paused. Once all are, the
worst are replaced by forks of the best: Jaderberg et al., "Population Based Training of Neural
Networks", arXiv:1711.09846 (2017), section 3.1, truncation selection. All have trained for as many
epochs, so that the decision does not depend on which of them was faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import inf, isfinite
from typing import Any, Final, Literal

from holdfast.core.tuning.rungs import Curve, StopRule, reason_to_stop

Goal = Literal["max", "min"]
Status = Literal["finished", "stopped", "failed"]

ALIKE: Final = 3
"""Trials that fail alike in a row, without an evaluation, after which the search ends."""

QUARTER: Final = 4
"""One trial in so many of a population is replaced, at least one of two or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A command has begun, or continues, the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial has got its values."""

    trial: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process has begun, or continues, a trial."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A trial was evaluated; the value is None if it was not finite."""

    trial: int
    epoch: int
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """A trial of a population has trained for a generation."""

    trial: int
    epoch: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A trial that begins with the state of another, in place of a third."""

    trial: int
    parent: int
    replaces: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    """A generation of a population has ended; `forks` are plain `Fork`s."""

    epoch: int
    forks: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A trial is stopped before its last epoch."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A trial has ended for good."""

    trial: int
    status: Status
    steps: int = 0
    seconds: float | None = None
    weights_sha256: str | None = None
    error: str = ""


Line = Opened | Asked | Started | Evaluated | Paused | Evolved | Stopping | Ended
_KINDS: Final = {
    "opened": Opened,
    "asked": Asked,
    "started": Started,
    "evaluated": Evaluated,
    "paused": Paused,
    "evolved": Evolved,
    "stopping": Stopping,
    "ended": Ended,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def plain(line: Line) -> tuple[str, dict[str, Any]]:
    """The event and the fields of a line of the record."""
    return _NAMES[type(line)], asdict(line)


def parsed(entry: Mapping[str, Any]) -> Line | None:
    """The line in an entry of the record; None for what this version does not know."""
    kind = _KINDS.get(entry.get("event", ""))
    if kind is None:
        return None
    known = {each.name for each in fields(kind)}
    try:
        line: Line = kind(**{name: value for name, value in entry.items() if name in known})
    except TypeError:  # a field is missing
        return None
    return line


@dataclass(slots=True, kw_only=True)
class Trial:
    """A trial, as far as the record tells.

    Attributes:
        number: Counts from 0.
        values: The values of the keys that are searched.
        evaluations: Epoch and value of each.
        stopping: Why it is stopped early; empty if it is not.
        ended: Its end; None while it is open.
        starts: Processes that began it since its newest evaluation.
        fork: How it began, if it is a fork.
        paused: The epoch at which it is paused, or from which it was forked; 0 at its start.
        paused_steps: Steps until then.
        first_epoch: The epoch from which it was forked.
    """

    number: int
    values: dict[str, Any]
    evaluations: list[tuple[int, float | None]] = field(default_factory=list)
    stopping: str = ""
    ended: Ended | None = None
    starts: int = 0
    fork: Fork | None = None
    paused: int = 0
    paused_steps: int = 0
    first_epoch: int = 0

    @property
    def epoch(self) -> int:
        """Its newest evaluation; before the first, the epoch at which it began."""
        return self.evaluations[-1][0] if self.evaluations else self.first_epoch

    def curve(self, goal: Goal) -> Curve:
        """Its evaluations as scores."""
        return [(epoch, score(value, goal)) for epoch, value in self.evaluations]

    def value(self, goal: Goal) -> float | None:
        """Its best value; None without a finite one."""
        finite = [value for _, value in self.evaluations if value is not None]
        return (max if goal == "max" else min)(finite, default=None)


def score(value: float | None, goal: Goal) -> float:
    """A value as a score: the higher the better."""
    if value is None or not isfinite(value):
        return -inf
    return value if goal == "max" else -value


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How a search decides.

    Attributes:
        trials: Number of trials.
        at_once: Number of trials that run at the same time.
        goal: Whether a higher or a lower value is better.
        epochs: Epochs of a complete trial.
        stop: The stop rule.
        strict: True if trial n knows the trials up to n - `at_once` and no others, so that the
            search does not depend on which trials end first.
        every: Epochs of a generation, if the trials are a population; else None.
    """

    trials: int
    at_once: int
    goal: Goal
    epochs: int
    stop: StopRule
    strict: bool
    every: int | None


class SearchState:
    """The trials of a search.

    Args:
        plan: How it decides.
        lines: Lines of its record, the oldest first.

    Attributes:
        trials: All trials, by number.
        generation: The epoch at which the newest generation of a population began.
    """

    def __init__(self, plan: SearchPlan, lines: Iterable[Line] = ()) -> None:
        self.plan = plan
        self.trials: list[Trial] = []
        self.generation = 0
        self._failures: list[str] = []
        for line in lines:
            self.apply(line)

    def apply(self, line: Line) -> None:
        """Fold a line of the record into the state."""
        match line:
            case Opened():
                self._failures.clear()
                for trial in self.trials:
                    trial.starts = 0
            case Asked():
                assert line.trial == len(self.trials), "trials are asked in order"
                self.trials.append(Trial(number=line.trial, values=line.values))
            case Started():
                self.trials[line.trial].starts += 1
            case Evaluated():
                trial = self.trials[line.trial]
                trial.evaluations.append((line.epoch, line.value))
                trial.starts = 1
            case Paused():
                trial = self.trials[line.trial]
                trial.paused = line.epoch
                trial.paused_steps = line.steps
                trial.starts = 0
            case Evolved():
                self.generation = line.epoch
                for each in line.forks:
                    self._fork(Fork(**each), line.epoch)
            case Stopping():
                self.trials[line.trial].stopping = line.reason
            case Ended():
                trial = self.trials[line.trial]
                trial.ended = line
                if line.status != "failed" or trial.evaluations:
                    self._failures.clear()
                else:
                    self._failures.append(line.error)

    def _fork(self, fork: Fork, epoch: int) -> None:
        replaced = self.trials[fork.replaces]
        replaced.stopping = f"replaced by trial {fork.trial}"
        replaced.ended = Ended(trial=fork.replaces, status="stopped", steps=replaced.paused_steps)
        assert fork.trial == len(self.trials), "trials are forked in order"
        trial = Trial(number=fork.trial, values=fork.values, fork=fork)
        trial.paused = trial.first_epoch = epoch
        trial.paused_steps = self.trials[fork.parent].paused_steps
        self.trials.append(trial)

    @property
    def open(self) -> list[Trial]:
        """Trials that have not ended."""
        return [trial for trial in self.trials if trial.ended is None]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, the first one of equals."""
        ended = [trial for trial in self.ranked if trial.ended is not None]
        valued = (each for each in ended if each.value(self.plan.goal) is not None)
        return next((each for each in valued if each.ended and each.ended.status != "failed"), None)

    @property
    def ranked(self) -> Sequence[Trial]:
        """All trials, the best first."""
        goal = self.plan.goal
        return sorted(self.trials, key=lambda each: -score(each.value(goal), goal))

    def next_trial(self) -> int | None:
        """The number of the trial that may be asked now; None if there is none."""
        number = len(self.trials)
        if number >= self.plan.trials or self.same_failures():
            return None
        waits = self.plan.strict and any(
            each.number <= number - self.plan.at_once for each in self.open
        )
        return None if waits else number

    @property
    def segment_end(self) -> int:
        """The epoch at which trials end, or pause in a population."""
        plan = self.plan
        return plan.epochs if plan.every is None else min(self.generation + plan.every, plan.epochs)

    def may_start(self, trial: Trial) -> bool:
        """True if an open trial has not come to the end of its segment."""
        return trial.paused < self.segment_end

    def replaced(self) -> dict[int, int] | None:
        """The trials of a generation that are replaced, each with its donor; None while the
        generation is incomplete.
        """
        trials = self.open
        if self.plan.every is None or len(self.trials) < self.plan.trials or not trials:
            return None
        if any(each.stopping or self.may_start(each) for each in trials):
            return None
        return replacements({each.number: each.curve(self.plan.goal)[-1][1] for each in trials})

    def known_to(self, number: int) -> list[Trial]:
        """The trials that have ended and that a trial may know."""
        newest = number - self.plan.at_once if self.plan.strict else number - 1
        ended = [each for each in self.trials if each.ended is not None]
        return [each for each in ended if each.number <= newest]

    def reason_to_stop(self, number: int) -> str:
        """Why a trial is stopped after its newest evaluation; empty if it continues.

        None is after its last one: it is complete.
        """
        plan = self.plan
        trial = self.trials[number]
        if trial.epoch >= trial.values.get("epochs", plan.epochs):
            return ""
        known = self.known_to(number) if plan.strict else self.trials
        curves = {each.number: each.curve(plan.goal) for each in known if each.evaluations}
        complete = [each.number for each in known if each.ended and each.ended.status == "finished"]
        curves[number] = trial.curve(plan.goal)
        return reason_to_stop(plan.stop, number, curves, complete, plan.epochs)

    def same_failures(self) -> str:
        """The error with which the newest trials have failed alike, without an evaluation and since
        the search was opened, so that more of them prove nothing; empty if they have not.
        """
        newest = self._failures[-ALIKE:]
        return newest[0] if len(newest) == ALIKE and len({*newest}) == 1 else ""


def replacements(scores: Mapping[int, float]) -> dict[int, int]:
    """The donor of each trial that is replaced: the worst quarter by the best one.

    Args:
        scores: The newest score of each trial, by number; the higher the better.
    """
    if len(scores) < 2:
        return {}
    ranked = sorted(scores, key=lambda number: (-scores[number], number))
    count = max(1, len(ranked) // QUARTER)
    pairs = zip(reversed(ranked), ranked[:count], strict=False)
    return {worst: best for worst, best in pairs if scores[worst] < scores[best]}
