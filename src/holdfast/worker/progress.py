"""Progress: how far a run has come, apart from its tensors."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from pydantic_core import from_json

from holdfast.checkpoint.manifest import Best
from holdfast.errors import JobError
from holdfast.worker.user_state.user_state import digest

_AROUND: Final = 10
"""Levels of JSON around the state, in a checkpoint and in a message."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """What every worker of a run knows alike, between two steps.

    Attributes:
        step: Steps committed.
        state: What user code keeps.
        state_then: What it kept when the newest step was committed: who takes over from here runs
            the code of the step after it again.
        user_state: What it keeps in PyTorch's own places since then.
        user_digest: What tells whether two workers keep the same since then; 56 bits.
        overwritten: The tensors that user code has written to between steps so far.
        loss: That of the newest step; None if there was none, or it was not finite.
        metrics: The newest results of the evaluation.
        best: The best evaluation so far, where one is looked for.
        best_then: The best one before the newest step.
        order: The data set and how the run walks through it.
        samples_checked: Whether its samples were compared with those that the run began with.
        numerics_changes: How hardware and software have changed over the run's lives.
        record: What the metrics say of the newest step.
        before: Evaluations before the first step of this life of the run, in order.
        results: Evaluations since the newest step, in order.
        calls: How many of them this worker has asked for.
        saved: Steps that were committed when the newest checkpoint was; -1 for none.
        owed: Whether what is due after the newest step, an evaluation or a checkpoint, is still
            to be done.
        calls_owed: How many evaluations that took.
        save: Whether a checkpoint was asked for here.
        stop: Whether the run ends here, as it was asked to.
    """

    step: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    committed_state: dict[str, Any] = field(default_factory=dict)
    user_state: dict[str, Any] = field(default_factory=dict)
    user_digest: int = 0
    overwritten: list[str] = field(default_factory=list)
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    best: Best = field(default_factory=Best)
    previous_best: Best = field(default_factory=Best)
    order: dict[str, Any] = field(default_factory=dict)
    samples_checked: bool = False
    numerics_changes: list[str] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    before: list[dict[str, float]] = field(default_factory=list)
    results: list[dict[str, float]] = field(default_factory=list)
    calls: int = 0
    saved: int = -1
    followup_pending: bool = False
    followup_calls: int = 0
    save: bool = False
    stop: bool = False

    def committed(
        self, loss: float | None, record: dict[str, Any], *, save: bool = False, stop: bool = False
    ) -> None:
        """Note one more step."""
        self.step += 1
        self.loss, self.record, self.save, self.stop = loss, record, save, stop
        self.previous_best = self.best
        self.results, self.calls, self.followup_calls, self.followup_pending = [], 0, 0, True

    def remember(self, user_state: dict[str, Any]) -> None:
        """Note what user code keeps, now that all it does between two steps is done.

        Raises:
            JobError: `state` holds what JSON cannot.
        """
        check_plain(self.state)
        self.committed_state, self.user_state = copy.deepcopy(self.state), user_state
        self.user_digest = digest(self.committed_state, self.user_state)

    def restore_committed_state(self) -> None:
        """Undo what user code has changed in `state` since the newest step was committed."""
        self.state.clear()
        self.state.update(copy.deepcopy(self.committed_state))

    @property
    def position(self) -> int:
        """Rises with all that workers do together between two steps."""
        measured = len(self.before) + len(self.results)
        return (measured << 1 | (self.saved == self.step)) << 1 | (not self.followup_pending)

    def replaced_by(self, other: Self) -> Self:
        """`other`, whose state takes the place of this one's in the same dictionary: user code may
        hold that.
        """
        self.state.clear()
        self.state.update(other.state)
        other.state = self.state
        return other

    def follow(self, leader: Self) -> None:
        """Take over what others have done together since the newest step."""
        self.before, self.results, self.metrics = leader.before, leader.results, leader.metrics
        if self.followup_pending and not leader.followup_pending:
            self.calls = leader.followup_calls
        self.best, self.followup_pending, self.followup_calls = (
            leader.best,
            leader.followup_pending,
            leader.followup_calls,
        )
        self.saved = leader.saved

    def plain(self) -> dict[str, Any]:
        """As JSON values, for whoever takes over from here.

        Raises:
            JobError: `state` holds what JSON cannot.
        """
        check_plain(self.committed_state)
        bests = {"best": dict(self.best), "previous_best": dict(self.previous_best)}
        return asdict(self) | bests | {"state": self.committed_state}

    @classmethod
    def from_donor(cls, plain: dict[str, Any]) -> Self:
        """What `plain` gave, as it is for a worker that begins there."""
        bests = {name: Best(**plain[name]) for name in ("best", "previous_best")}
        found = cls(**(plain | bests))
        found.state = copy.deepcopy(found.committed_state)
        found.calls = 0 if found.followup_pending else found.followup_calls
        return found


def check_plain(state: dict[str, Any]) -> None:
    """Raises: JobError: `state` would not come back from JSON as it is."""
    try:
        text, shown = json.dumps(state, ensure_ascii=False).encode(), repr(state)
        same = repr(json.loads(text)) == shown
        from_json(_AROUND * b"[" + text + _AROUND * b"]")  # as its reader parses it
    except (TypeError, ValueError, RecursionError) as error:
        same, shown = False, f"what cannot be written: {error}"
    if not same:
        raise JobError(
            "session.state must hold plain JSON values: numbers, strings, lists (no tuples), and "
            f"dictionaries with strings as keys; it holds {shown:.200}"
        )
