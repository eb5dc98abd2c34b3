"""Which checkpoints retention verifies, keeps and deletes. Pure.

Kept are the newest ones that were read back from the storage and match their digests, and that of
the best evaluation. Nothing is deleted before all of these are verified. A corrupt checkpoint
counts for nothing. An unreadable one, whose storage reported an error, counts for nothing either,
and is never deleted: the error may pass.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Condition(enum.Enum):
    """What is known of a checkpoint."""

    UNVERIFIED = enum.auto()
    VERIFIED = enum.auto()
    UNREADABLE = enum.auto()
    CORRUPT = enum.auto()


_UNVERIFIED, _VERIFIED = Condition.UNVERIFIED, Condition.VERIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint as retention sees it.

    Attributes:
        name: Its name.
        step: Its step.
        condition: What is known of it.
        best_step: The step of the best evaluation so far, if the job looks for one; only known of
            a verified checkpoint.
    """

    name: str
    step: int
    condition: Condition = Condition.UNVERIFIED
    best_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next.

    Attributes:
        verify: The checkpoint to verify before anything is decided; None once all is known.
        delete: The checkpoints to delete, newest first.
        has_verified: Whether there is a verified one, so that corrupt ones can be quarantined.
    """

    verify: str | None = None
    delete: tuple[str, ...] = ()
    has_verified: bool = False


def decide(checkpoints: Sequence[FoundCheckpoint], last: int) -> Decision:
    """Decide what to verify next, or else what to delete.

    Args:
        checkpoints: All checkpoints, newest first.
        last: How many to keep besides that of the best evaluation.
    """
    usable = [each for each in checkpoints if each.condition in (_UNVERIFIED, _VERIFIED)]
    newest = usable[:last]
    best = _best(usable, newest[0].best_step) if newest else None
    needed = newest if best is None else [*newest, best]
    for each in needed:
        if each.condition == _UNVERIFIED:
            return Decision(verify=each.name)
    old = [each.name for each in usable if each not in needed]
    return Decision(delete=tuple(old), has_verified=bool(newest))


def _best(usable: Sequence[FoundCheckpoint], best_step: int | None) -> FoundCheckpoint | None:
    """The checkpoint of the best evaluation. If that is lost, an older one tells the best before
    it, once it is verified.
    """
    for each in usable:
        if best_step is None or each.step > best_step:
            continue
        if each.condition == _VERIFIED and each.step < best_step:
            best_step = each.best_step
        if each.condition == _UNVERIFIED or each.step == best_step:
            return each
    return None
