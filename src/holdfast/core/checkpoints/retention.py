"""Retention: decides which checkpoints are verified, kept and deleted. Pure.

Kept are the newest ones that were read back from the storage and match their digests, that of the
best evaluation, the first one at or after each multiple of some steps, and those that are pinned.
Nothing is deleted before all that would outlive it in its place are verified. Where reading them
would cost training too much, the newest verified one stays as well, and the others go unread.
A corrupt checkpoint counts for nothing. An unreadable one, whose storage reported an error, counts
for nothing either, and is never deleted: the error may pass.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Checkpoints that a job keeps, apart from pinned ones and that of the best evaluation.

    Attributes:
        last: Number of the newest to keep, at least 1.
        every: The first at or after each multiple of so many steps; 0 keeps none for that.
        has_best: True if the job looks for the best evaluation.
    """

    last: int
    every: int = 0
    has_best: bool = False

    def period_of(self, step: int) -> int:
        """The multiple of `every` that `step` comes after; 0 if it is before the first."""
        return step // self.every if self.every else 0


class Condition(enum.Enum):
    """Knowledge of a checkpoint's bytes."""

    UNVERIFIED = enum.auto()
    VERIFIED = enum.auto()
    UNREADABLE = enum.auto()
    CORRUPT = enum.auto()


class Reason(enum.StrEnum):
    """Cause for which a checkpoint is kept."""

    LAST = "last"
    BEST = "best"
    EVERY = "every"
    PINNED = "pinned"


_UNVERIFIED = Condition.UNVERIFIED
_VERIFIED = Condition.VERIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint as retention sees it.

    Attributes:
        name: Its name.
        step: Its step.
        condition: Knowledge of its bytes.
        best_step: The step of the best evaluation so far, if the job looks for one; only known of
            a verified checkpoint.
        is_pinned: True if it is never deleted.
    """

    name: str
    step: int
    condition: Condition = Condition.UNVERIFIED
    best_step: int | None = None
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Next step of retention.

    Attributes:
        verify: The checkpoint to verify before anything is decided; None once all is known.
        delete: The checkpoints to delete, newest first.
        has_verified: True if there is a verified one, so that corrupt ones can be quarantined.
    """

    verify: str | None = None
    delete: tuple[str, ...] = ()
    has_verified: bool = False


def decide(
    checkpoints: Sequence[FoundCheckpoint], policy: RetentionPolicy, *, verify_all: bool = True
) -> Decision:
    """Decide what to verify next, or else what to delete.

    Args:
        checkpoints: All checkpoints, newest first.
        policy: Rules of the job.
        verify_all: True to verify all of the newest; False for only what cannot be left out.
    """
    why_kept = reasons(checkpoints, policy)
    usable = _usable(checkpoints)
    verified = next((each for each in usable if each.condition == _VERIFIED), None)
    # Only the newest ones know the best evaluation; nothing is deleted before it is known.
    enough = usable[: policy.last] if policy.has_best else usable
    verify_last = verify_all or verified not in enough
    # Those that nothing keeps. What takes their place must be verified before they go.
    old = [each for each in usable if each.name not in why_kept and each is not verified]
    thinned = {policy.period_of(each.step) for each in old}
    # One at a time, newest first: the result may change what is kept.
    for each in usable:
        why = why_kept.get(each.name, ())
        replaces = Reason.EVERY in why and policy.period_of(each.step) in thinned
        is_needed = (Reason.LAST in why and verify_last) or Reason.BEST in why or replaces
        if is_needed and each.condition == _UNVERIFIED:
            return Decision(verify=each.name)
    return Decision(delete=tuple(each.name for each in old), has_verified=bool(usable))


def reasons(
    checkpoints: Sequence[FoundCheckpoint], policy: RetentionPolicy
) -> dict[str, tuple[Reason, ...]]:
    """Causes for which each checkpoint is kept, as far as is known; those to delete are left out.

    Args:
        checkpoints: All checkpoints, newest first.
        policy: Rules of the job.
    """
    usable = _usable(checkpoints)
    # The newest verified manifest knows the best evaluation up to its step.
    newest = usable[: policy.last]
    verified = (each for each in newest if each.condition == _VERIFIED)
    best = _best(usable, next((each.best_step for each in verified), None))
    first = {policy.period_of(each.step): each for each in usable}  # the oldest comes last
    first.pop(0, None)
    chosen: dict[Reason, Collection[FoundCheckpoint | None]] = {
        Reason.LAST: newest,
        Reason.BEST: [best],
        Reason.EVERY: first.values(),
        Reason.PINNED: [each for each in usable if each.is_pinned],
    }
    why_kept = {each.name: tuple(why for why in Reason if each in chosen[why]) for each in usable}
    return {name: why for name, why in why_kept.items() if why}


def _usable(checkpoints: Sequence[FoundCheckpoint]) -> list[FoundCheckpoint]:
    return [each for each in checkpoints if each.condition in (_UNVERIFIED, _VERIFIED)]


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
