"""Receipts: what the recoveries of a run have cost, and how people are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Final, Literal

from pydantic import TypeAdapter

from holdfast.observe.stacks import stacks_file

WIDTH: Final = 160
"""How much of a cause is told to people, characters; the rest is in the log of its worker."""

Outcome = Literal["recovered", "restarted", "ended", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A loss that did not follow from another.

    Attributes:
        who: What was lost: `rank 1`, `agent`, `fork-server` or `coordinator`.
        rank: The worker's, if it was one.
        what: What has happened to it, in words.
        on_purpose: The kind of the fault that was injected, if one was.
        stack: Where it hung, if it could be asked: the innermost frames, the innermost first.
    """

    who: str
    rank: int | None = None
    what: str
    injected_fault: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What a recovery has cost.

    Attributes:
        number: Of the run's, from 1.
        time_unix_s: When it was over.
        outcome: `recovered`: the run goes on. `ended`: it came to its end without a further step.
            `failed`: that was its end. `restarted`: a script has begun anew, with steps of its own.
        causes: What was lost, the first first.
        step: The most steps that any worker had committed before.
        ended: Workers that were ended because of it, or came to an end with it: its victims.
        halted: Workers that stood still meanwhile.
        seconds: How long each phase took, in order: `found` (from the blow, where that was on
            purpose), `forked`, `all ready`, `next step`; or `back` for a coordinator.
        total_s: All of them.
        checkpoint: The step of the checkpoint from which all went on, 0 for the beginning; None
            where somebody had the state.
        steps_again, samples_again: What had been committed and had to be computed again.
    """

    number: int
    time_unix_s: float
    outcome: Outcome
    causes: tuple[Cause, ...]
    step: int
    ended: tuple[int, ...]
    halted: tuple[int, ...]
    seconds: Mapping[str, float]
    total_s: float
    checkpoint: int | None
    recomputed_steps: int
    recomputed_samples: int


ADAPTER: Final = TypeAdapter(RecoveryReport)
"""From a receipt to plain data and back."""


def text(receipt: RecoveryReport, logs: Path) -> str:
    """A receipt for people, several lines.

    Args:
        receipt: What to tell.
        logs: The directory of the workers' logs.
    """
    causes = Counter(map(_words, receipt.causes))
    first, *others = [f"{what}{f', {n} times' if n > 1 else ''}" for what, n in causes.items()]
    rows = [*(("and", other) for other in others), *_stacks(receipt, logs)]
    rows += [("others", _others(receipt)), ("time", _times(receipt)), *_end(receipt)]
    place = f", after step {receipt.step}" if receipt.step else ""
    head = f"── receipt {receipt.number}{place} ── {first}"
    return "\n".join([head, *(f"   {name:<8}{words}" for name, words in rows)])


def _words(cause: Cause) -> str:
    who = cause.who if cause.rank is not None else f"the {cause.who.replace('-', ' ')}"
    words = shorten(f"{who} {cause.what}", WIDTH, placeholder=" …")
    return f"{words} (on purpose: {cause.injected_fault})" if cause.injected_fault else words


def _stacks(receipt: RecoveryReport, logs: Path) -> Iterator[tuple[str, str]]:
    for cause in receipt.causes:
        if cause.rank is not None and cause.stack:
            yield "stack", cause.stack[0]
            yield from (("", frame) for frame in cause.stack[1:])
            yield "", f"… and all else in {stacks_file(logs, cause.rank)}"


def _others(receipt: RecoveryReport) -> str:
    """What has become of those to whom nothing had happened."""
    told = []
    if receipt.ended:
        told.append(f"{_named(receipt.ended)} had to end because of that")
    if receipt.halted:
        kept = "kept the state" if receipt.checkpoint is None else "went back too"
        told.append(f"{_named(receipt.halted)} stood still, and {kept}")
    return "; ".join(told) or "nobody was called away"


def _times(receipt: RecoveryReport) -> str:
    shares = ", ".join(f"{name} {seconds:.2f}" for name, seconds in receipt.seconds.items())
    return f"{receipt.total_s:.2f} s: {shares}" if shares else f"{receipt.total_s:.2f} s"


def _end(receipt: RecoveryReport) -> list[tuple[str, str]]:
    """From where the run went on and what it had to do again, or that it did not."""
    if receipt.outcome == "failed":
        return [("then", "the run failed")]
    if receipt.outcome == "restarted":
        return [("then", "the script began anew")]
    steps = f"{receipt.recomputed_steps} step{'s' * (receipt.recomputed_steps != 1)}"
    again = [("again", f"{steps}, {receipt.recomputed_samples} samples")]
    if receipt.checkpoint is None:
        return again
    start = f"the checkpoint of step {receipt.checkpoint}" if receipt.checkpoint else "the start"
    return [("from", start), *again]


def _named(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
