"""Prune: verifies checkpoints as far as retention needs it, and deletes those it does not keep.

`core.checkpoints.retention` decides what is kept. A corrupt checkpoint is quarantined if there is a
verified one, so a bad write never costs the last good checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.checkpoint import names
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.verify import Damage, examine
from holdfast.core.checkpoints.retention import Condition, FoundCheckpoint, RetentionPolicy, decide
from holdfast.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Work to do on the checkpoints of a run.

    Attributes:
        delete: The names of those to delete, newest first.
        corrupt: Checkpoints that are damaged.
        has_verified: True if there is a verified one, so that corrupt ones can be quarantined.
    """

    delete: tuple[str, ...]
    corrupt: tuple[Damage, ...]
    has_verified: bool


class Pruner:
    """Applies retention to the checkpoints of a run, in the thread of its caller.

    Each checkpoint is read once, however often it is asked for: later its manifest is enough.

    Args:
        store: The checkpoints.
        policy: Rules for keeping them.
        report: Called with what is damaged.
        advance: Defined in `verify.examine`.
    """

    def __init__(
        self,
        store: CheckpointStore,
        policy: RetentionPolicy,
        report: Callable[[Damage], None],
        advance: Callable[[int], None],
    ) -> None:
        self._store = store
        self._policy = policy
        self._report = report
        self._advance = advance
        self._verified: dict[str, str] = {}  # digests of manifests, by name

    def plan(self, *, verify_all: bool = True) -> Pruning:
        """Read back what must be known, and say what is to be done; changes nothing.

        Args:
            verify_all: Defined in `core.checkpoints.retention.decide`.

        Raises:
            OSError: The storage cannot be reached.
        """
        pinned = self._store.pinned()
        corrupt = list[Damage]()
        checkpoints = {
            name: FoundCheckpoint(name=name, step=names.step_of(name), is_pinned=name in pinned)
            for name in self._store.committed()
        }
        for known in self._verified.keys() & checkpoints.keys():
            checkpoints[known] = self._verify(checkpoints[known], corrupt)
        # Each verification may change what is kept, and so what must be verified next.
        while True:
            found = [*checkpoints.values()]
            decision = decide(found, self._policy, verify_all=verify_all)
            if (name := decision.verify) is None:
                break
            checkpoints[name] = self._verify(checkpoints[name], corrupt)
        return Pruning(
            delete=decision.delete, corrupt=tuple(corrupt), has_verified=decision.has_verified
        )

    def carry_out(self, pruning: Pruning) -> None:
        """Delete and quarantine.

        Raises:
            OSError: The storage cannot be written to.
        """
        # Only checkpoints that nothing keeps, and whose successors were read back.
        for name in pruning.delete:
            self._store.delete(name)
        for event in pruning.corrupt:
            now = self._quarantine(event) if pruning.has_verified else event
            if now is not None:
                self._report(now)

    def _verify(self, checkpoint: FoundCheckpoint, corrupt: list[Damage]) -> FoundCheckpoint:
        examined = examine(self._store, checkpoint.name, self._advance, self._verified.values())
        if examined.damage:
            damage = examined.damage[0]
            if damage.is_corrupt:
                corrupt.append(damage)
                return replace(checkpoint, condition=Condition.CORRUPT)
            if checkpoint.name in self._store.committed():  # else workers have quarantined it
                self._report(damage)
            return replace(checkpoint, condition=Condition.UNREADABLE)
        manifest = examined.manifest
        assert manifest is not None
        # A checkpoint never changes, so it need not be read again.
        self._verified[checkpoint.name] = manifest.sha256
        return replace(checkpoint, condition=Condition.VERIFIED, best_step=manifest.best.kept_step)

    def _quarantine(self, event: Damage) -> Damage | None:
        """Quarantine a corrupt checkpoint; None if workers have done so themselves."""
        try:
            name = self._store.quarantine(names.checkpoint_name(event.step))
        except FileNotFoundError:
            return None
        except CheckpointError:  # there is no name left for it
            return event
        return replace(event, location=self._store.location(name))
