"""Progress: how far a run has come, apart from its tensors.

Every worker knows it alike between two steps. Each part has one owner, which alone changes it, but
for a worker that gets all of it from another one or from a checkpoint:

    Progress        position, newest step      worker.training_loop
    ├ costs         of a shard, by rank        worker.balancing
    ├ loss_scale    of the next step           worker.training_loop
    ├ Evaluations   results, the best one      worker.followups
    ├ Followup      what remains to be done    worker.followups
    └ UserValues    what user code keeps       worker.membership.worker_state

A commit begins new `Evaluations` and a new `Followup`. The whole of it travels in the header of a
state transfer, and what a later attempt needs is written to the manifest of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from holdfast.checkpoint.manifest import Best
from holdfast.core.step.loss_scale import LossScale
from holdfast.data.loading.order import SHUFFLED
from holdfast.errors import JobError
from holdfast.rundir import json_lines
from holdfast.worker.step.commit import RequestFlags, StepOutcome
from holdfast.worker.user_state.user_values import UserValues, values_of

NOT_SAVED: Final = -1


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """Results of evaluations, and the count of those that this worker has asked for.

    All workers evaluate together. One that was replaced in between asks again and gets the known
    results, so calls are counted.

    Attributes:
        metrics: The newest results, by name.
        best: The best evaluation so far, if the job selects one.
        previous_best: The best evaluation before the newest step.
        before_loop: Results before the first step since this attempt started, in order.
        results: Results since the newest step, in order.
        calls: Number of `results` that this worker has asked for.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    best: Best = field(default_factory=Best)
    previous_best: Best = field(default_factory=Best)
    before_loop: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0

    def begin_step(self) -> None:
        """Note that a step was committed."""
        self.previous_best = self.best
        self.results = []
        self.calls = 0

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON values."""
        bests = {"best": dict(self.best), "previous_best": dict(self.previous_best)}
        return values_of(self) | bests

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        bests = {name: Best(**values[name]) for name in ("best", "previous_best")}
        return cls(**{**values, **bests})


@dataclass(slots=True, kw_only=True)
class Pause:
    """Work of the caller of `session.steps` between two steps.

    A worker that takes over does it again, from the values before it: another one may have been
    lost while it wrote a file.

    Attributes:
        is_done: True if this worker has done it.
        before: User values before it, as JSON values; None if it has not begun, or if it cannot be
            done again because it has written to tensors.
    """

    is_done: bool = False
    before: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Followup:
    """Work of all workers after the newest step: pause, evaluate, save a checkpoint, stop.

    Attributes:
        pending: True if some of it remains to be done.
        pause: Pause of the caller of `session.steps`, as long as it is not over on all workers.
        evaluates: True while evaluations remain of it.
        calls: Number of evaluations that it took.
        requests: Requests to the run by the time the step was committed.
    """

    pending: bool = False
    pause: Pause | None = None
    evaluates: bool = False
    calls: int = 0
    requests: RequestFlags = RequestFlags.NOTHING

    @property
    def stops(self) -> bool:
        """True if the run was asked to stop after the step."""
        return bool(self.requests & RequestFlags.STOP)

    @property
    def saves(self) -> bool:
        """True if the run was asked for a checkpoint of the step."""
        return bool(self.requests & RequestFlags.SAVE)

    @property
    def compares(self) -> bool:
        """True if the run was asked to compare all replicas after the step."""
        return bool(self.requests & RequestFlags.COMPARE)

    @property
    def snapshots(self) -> bool:
        """True if the state after the step is to be kept in memory."""
        return bool(self.requests & RequestFlags.SNAPSHOT)

    @property
    def is_busy(self) -> bool:
        """True if some worker had no memory to stage a checkpoint of the step."""
        return bool(self.requests & RequestFlags.BUSY)


@dataclass(slots=True, kw_only=True)
class Progress:
    """Knowledge that every worker of a run has alike, between two steps.

    Attributes:
        step: Steps committed.
        loss: The loss of the newest step; None if there is none, or it is not finite.
        record: The metrics line of the newest step.
        order: The data set and the sample order; see `data.loading.order`.
        numerics_changes: Changes of hardware and software over the run's lives, and differences
            between members that have trained together.
        saved_step: The step of the newest checkpoint that is known to be durable; NOT_SAVED if not
            every host has one.
        deferred: True if a checkpoint is due since an earlier step.
        keeps_error: True if the newest gradient was compressed, so that some of it is kept for the
            next step, which no checkpoint has.
        costs: Cost of a shard and of the rest of a step on each rank that was measured, seconds.
        loss_scale: The scale of the next step; None if losses are not scaled.
        pending: Facts known of the newest step if its outcome is not: `outcome`, a
            `PendingOutcome`, and `record`, the rest of its metrics line; else None.
        evaluations, followup, user: Parts with an owner of their own; see the classes.
    """

    step: int = 0
    loss: float | None = None
    record: dict[str, Any] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    numerics_changes: list[str] = field(default_factory=list)
    saved_step: int = NOT_SAVED
    deferred: bool = False
    keeps_error: bool = False
    costs: list[tuple[int, float, float]] = field(default_factory=list)
    loss_scale: LossScale | None = None
    pending: dict[str, Any] | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    followup: Followup = field(default_factory=Followup)
    user: UserValues = field(default_factory=UserValues)

    @property
    def scale(self) -> int:
        """Factor on the losses of the next step."""
        return 1 if self.loss_scale is None else self.loss_scale.value

    def advance(self, requests: RequestFlags) -> None:
        """Note one more committed step; `settle` follows, before another one begins to count."""
        self.step += 1
        self.evaluations.begin_step()
        self.followup = Followup(pending=True, requests=requests)

    def settle(self, record: dict[str, Any], outcome: StepOutcome) -> None:
        """Note the outcome of the newest step, also in its metrics line."""
        if self.loss_scale is not None:
            record["scale"] = self.scale
            self.loss_scale = self.loss_scale.after(is_finite=not outcome.skipped)
        logged = {name: json_lines.number(value) for name, value in outcome.logged.items()}
        record |= {
            "loss": json_lines.number(outcome.loss),
            "norm": json_lines.number(outcome.norm),
            "logged": logged,
        }
        if outcome.skipped:
            record["skipped"] = True
        self.loss = record["loss"]
        self.record = record
        self.pending = None

    @property
    def work_done(self) -> int:
        """Rises with all that workers do together between two steps."""
        evaluated = len(self.evaluations.before_loop) + len(self.evaluations.results)
        is_saved = self.saved_step == self.step
        is_done = not self.followup.pending
        has_paused = self.followup.pause is None
        return evaluated << 3 | is_saved << 2 | is_done << 1 | has_paused

    def replace(self, other: Self) -> None:
        """Become `other`, in place: every part of a worker holds this object."""
        user = self.user.replaced_by(other.user)
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
        self.user = user

    def catch_up(self, leader: Self) -> None:
        """Take over what other workers have done together since the newest step."""
        calls = self.evaluations.calls
        if self.followup.pending and not leader.followup.pending:
            calls = leader.followup.calls
        self.saved_step = leader.saved_step
        self.deferred = leader.deferred
        self.evaluations = leader.evaluations
        self.followup = leader.followup
        self.evaluations.calls = calls

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON values, for a worker that continues from here; they are not copied."""
        pause = self.followup.pause
        parts = {
            "loss_scale": self.loss_scale and asdict(self.loss_scale),
            "evaluations": self.evaluations.to_json(),
            "followup": values_of(self.followup) | {"pause": pause and values_of(pause)},
            "user": self.user.to_json(),
        }
        return values_of(self) | parts

    @classmethod
    def from_donor(cls, values: Mapping[str, Any]) -> Self:
        """The progress of a worker that gets its state from the one whose `to_json` this is."""
        user = values["user"]
        pause = values["followup"]["pause"]
        if pause is not None and pause["before"] is not None:
            user = pause["before"]
            pause = {}
        paused = {"pause": pause if pause is None else Pause(**pause)}
        followup = Followup(**values["followup"] | paused)
        evaluations = Evaluations.from_json(values["evaluations"])
        evaluations.calls = 0 if followup.pending else followup.calls
        parts = {
            "loss_scale": values["loss_scale"] and LossScale(**values["loss_scale"]),
            "evaluations": evaluations,
            "followup": followup,
            "user": UserValues.from_json(user),
        }
        return cls(**{**values, **parts})


def note_facts(progress: Progress, facts: Mapping[str, Any], *, extend: bool) -> bool:
    """Note in `progress` what must stay the same in a resumed run; returns whether it is longer.

    Args:
        progress: Progress of the run.
        facts: Data that the run reads, by name.
        extend: True if there may be more epochs or steps than before.

    Raises:
        JobError: The run began with something else.
    """
    # Older checkpoints do not name the order: their runs have shuffled, whatever a loader said.
    known = ({"sampler": SHUFFLED} if "num_samples" in progress.order else {}) | progress.order
    changed = [key for key in facts if known.get(key, facts[key]) != facts[key]]
    longer = [key for key in changed if key in ("epochs", "steps") and facts[key] > known[key]]
    if changed and not (extend and changed == longer):
        key = next((each for each in changed if each not in longer), changed[0])
        advice = "extend the run with extend=true"
        raise JobError(
            f"the run began with {key}={known[key]} in session.shards and now has {facts[key]}: "
            "samples would be used twice or never. "
            + (
                f"To train for longer, {advice}"
                if changed == longer
                else "Resume with the same data"
            )
            + ", or start a new run"
        )
    progress.order = {**known, **facts}
    return bool(changed)
