"""Lineage: from where each life of a run continued, and which generation computed each step. Pure.

Every start of a run is a life, with one or more generations. A generation that begins after step s
replaces all steps after s. So what is left of each one is from its own beginning to the earliest
beginning of those after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from holdfast.record import history
from holdfast.record.audit.statement import NO_STEP, Check, judged, not_checked
from holdfast.record.audit.step_checks import StepRow
from holdfast.record.moments import is_failure
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.units import count

STORED: Final = frozenset({"checkpoint-committed", "checkpoint-collected", "checkpoint-fetched"})
"""Events after which a checkpoint is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A membership of workers.

    Attributes:
        number: Within its life.
        at: Begin, Unix time, seconds.
        step: After how many steps.
        ranks: Its members.
        from_checkpoint: True if no worker had the state any more.
        last_committed: The most steps that one of its workers had committed before.
        is_stored: True if a checkpoint of `step` had been recorded by then.
        causes: The failures before it, in words.
        recomputed: Committed steps that were computed again; None if that is not recorded.
    """

    number: int
    at: float
    step: int
    ranks: tuple[int, ...]
    from_checkpoint: bool
    last_committed: int
    is_stored: bool
    causes: tuple[str, ...]
    recomputed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """From a start of the run to its end.

    Attributes:
        number: From 1.
        at: Begin, Unix time, seconds; None if that is not recorded.
        workers: Count that was asked for; None if that is not recorded.
        generations: In order.
        ending: Status at its end, in words; empty if that is not recorded.
        steps: Committed steps at its end; None if that is not recorded.
    """

    number: int
    at: float | None = None
    workers: int | None = None
    generations: tuple[Generation, ...] = ()
    ending: str = ""
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps that count, and who computed them.

    Attributes:
        first, last: The steps.
        life, generation: Their numbers.
        workers: The world size.
        at: Begin of the generation, Unix time, seconds.
    """

    first: int
    last: int
    life: int
    generation: int
    workers: int
    at: float


def lives_of(
    events: Iterable[Mapping[str, Any]], recoveries: Iterable[RecoveryReport] = ()
) -> list[Life]:
    """The lives of a run.

    Args:
        events: Its events, in the order of their file.
        recoveries: Its recovery reports.
    """
    lives = _lives(events)
    again = [(each.time_unix_s, each.recomputed_steps) for each in recoveries]
    before = [None, *lives]
    return [
        replace(life, generations=_counted(life.generations, earlier, again))
        for life, earlier in zip(lives, before, strict=False)
    ]


def _lives(events: Iterable[Mapping[str, Any]]) -> list[Life]:
    lives = list[Life]()
    stored = set[int]()
    causes = list[str]()
    for event in events:
        match event:
            case {"event": "run-started", "time_unix_s": at}:
                workers = event.get("workers")
                lives.append(Life(number=len(lives) + 1, at=at, workers=workers))
                causes.clear()
            case {"event": "generation-started"}:
                lives = lives or [Life(number=1)]
                lives[-1] = _with_generation(lives[-1], event, stored, causes)
                causes.clear()
            case {"event": "run-ended" | "run-failed"} if lives:
                steps = event.get("steps")
                ending = history.words(event)
                lives[-1] = replace(lives[-1], ending=ending, steps=steps)
            case {"event": name, "step": int(step)} if name in STORED:
                stored.add(step)
            case _ if is_failure(event):
                causes.append(history.words(event))
    return lives


def _with_generation(
    life: Life, event: Mapping[str, Any], stored: set[int], causes: Sequence[str]
) -> Life:
    """A life with one more generation, or with what another host says of its newest."""
    last = int(event["last_committed_step"])
    *before, newest = life.generations or (None,)
    if newest is not None and newest.number == event["number"]:
        newest = replace(newest, last_committed=max(newest.last_committed, last))
        return replace(life, generations=(*before, newest))
    generation = Generation(
        number=event["number"],
        at=event["time_unix_s"],
        step=event["step"],
        ranks=tuple(event["members"]),
        from_checkpoint=event["from_checkpoint"],
        last_committed=last,
        is_stored=event["step"] in stored,
        causes=tuple(causes),
    )
    return replace(life, generations=(*life.generations, generation))


def _counted(
    generations: Sequence[Generation],
    earlier: Life | None,
    again: Sequence[tuple[float, int]],
) -> tuple[Generation, ...]:
    """The generations of a life, each with what it has computed again.

    Args:
        generations: Generations of the life.
        earlier: The life before it.
        again: End of each recovery, and its cost.
    """
    counted = list[Generation]()
    ends = [*(each.at for each in generations[1:]), inf]
    for each, end in zip(generations, ends, strict=False):  # there may be no generation
        reported = [steps for at, steps in again if each.at <= at < end]
        if counted:
            recomputed = sum(reported) if reported or each.from_checkpoint is False else None
        elif earlier is None:
            recomputed = 0
        else:
            recomputed = None if earlier.steps is None else max(0, earlier.steps - each.step)
        counted.append(replace(each, recomputed=recomputed))
    return tuple(counted)


def segments_of(lives: Sequence[Life], newest: int) -> list[Segment]:
    """Generations that have computed the steps that count.

    Args:
        lives: The lives of the run.
        newest: The newest step.
    """
    found = list[Segment]()
    last = newest
    for life in reversed(lives):
        for each in reversed(life.generations):
            if each.step < last:
                segment = Segment(
                    first=each.step + 1,
                    last=last,
                    life=life.number,
                    generation=each.number,
                    workers=len(each.ranks),
                    at=each.at,
                )
                found.append(segment)
            last = min(last, each.step)
    return found[::-1]


def check_lineage(lives: Sequence[Life]) -> Check:
    """Check that each generation has continued from a step that was there."""
    generations = [each for life in lives for each in life.generations]
    if not generations:
        return not_checked("lineage", "no generation is recorded")
    problems = list[str]()
    unknown = list[str]()
    for life in lives:
        for each in life.generations:
            who = f"generation {each.number} of start {life.number}"
            if each.step and each.from_checkpoint and not each.is_stored:
                unknown.append(f"{who} began after step {each.step}, of which no checkpoint is")
            if not each.from_checkpoint and each.last_committed > each.step:
                problems.append(
                    f"{who} continued after step {each.step}, and {each.last_committed} steps were "
                    "committed"
                )
    if unknown and not problems:
        return not_checked("lineage", f"{'; '.join(unknown)} recorded here")
    return judged("lineage", problems, _text(lives, generations))


def _text(lives: Sequence[Life], generations: Sequence[Generation]) -> str:
    known = [each.recomputed for each in generations if each.recomputed is not None]
    unknown = len(generations) - len(known)
    text = (
        f"{count(len(lives), 'start')} and {count(len(generations), 'generation')}, each of which "
        f"continued from a step that was there; {count(sum(known), 'step')} computed again and "
        "counted once"
    )
    if unknown:
        text += f", and in {count(unknown, 'generation')} a number that is not recorded"
    return text


def check_writers(
    rows: Sequence[StepRow], segments: Sequence[Segment], *, has_several_hosts: bool
) -> Check:
    """Check that the record of each step is that of the generation whose result counts: it was
    written after this has begun.
    """
    if not rows:
        return not_checked("writers", NO_STEP)
    if has_several_hosts:
        return not_checked("writers", "the clocks of several hosts do not tell who wrote a step")
    by_step = {row.step: row for row in rows if row.at is not None}
    problems = [
        f"step {step} was recorded before generation {segment.generation} of start {segment.life} "
        "began, which computed it again"
        for segment in segments
        for step in range(segment.first, segment.last + 1)
        if step in by_step and (by_step[step].at or 0) < segment.at
    ]
    if not segments:
        return not_checked("writers", "no generation is recorded")
    return judged("writers", problems, "each step is recorded by the generation that counts for it")
