"""Check: one statement about a run, and whether its record proves it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.record.units import NBSP

MAX_PROBLEMS: Final = 5
"""Number of problems of one kind that are named."""
NO_STEP: Final = "no step is recorded"


class Answer(enum.StrEnum):
    """Answer of a run's record to a statement."""

    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A statement about a run.

    Attributes:
        name: Subject, in a word.
        outcome: Answer.
        text: The statement, what contradicts it, or why it could not be checked.
    """

    name: str
    outcome: Answer
    text: str


def passed(name: str, text: str) -> Check:
    """A statement that the record proves."""
    return _check(name, Answer.OK, text)


def not_checked(name: str, text: str) -> Check:
    """A statement that the record can neither prove nor refute."""
    return _check(name, Answer.NOT_CHECKED, text)


def judged(name: str, problems: Sequence[str], text: str) -> Check:
    """A statement that is true unless there are problems."""
    if not problems:
        return passed(name, text)
    more = len(problems) - MAX_PROBLEMS
    named = "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return _check(name, Answer.FAILED, named)


def _check(name: str, outcome: Answer, text: str) -> Check:
    return Check(name=name, outcome=outcome, text=text.replace(NBSP, " "))
