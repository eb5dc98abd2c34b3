"""What agents and the coordinator tell each other: each its whole state, again and again.

An agent reports a `Status` when something changes and at every heartbeat; the coordinator answers
with `Orders` that say how things should be. Neither sends differences, so a message that is lost,
late, doubled or overtaken does no harm: the next one says it all. A report with an older number
and orders of an older generation are refused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Stage(enum.IntEnum):
    """How far a host is, or should be, in its generation.

    IDLE    it has no part in any
    HALT    workers stand still: nobody commits, everybody says what he has
    RUN     workers train
    END     the run is over: workers and agent leave
    """

    IDLE = 0
    HALT = 1
    RUN = 2
    END = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a worker is gone.

    Attributes:
        cause: In words, the rank left out.
        error: The class of the exception that it raised; empty if it died without one.
        traceback: The worker's own, where it says more than the cause.
        fatal: Whether it would come again, whoever computes: there is no use in another worker.
        repeatable: Whether it may come again, being of the worker's own making.
        rollback: Whether no worker's state can be trusted: all begin again from a checkpoint.
        follows: Whether another failure, which is counted, has caused it.
    """

    cause: str
    error: str = ""
    traceback: str = ""
    fatal: bool = False
    repeatable: bool = False
    state_untrusted: bool = False
    is_cascading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A worker's part of a checkpoint.

    Attributes:
        number: Of the checkpoints that its generation has begun, from 1: the same step may be tried
            twice.
        step: Steps committed then.
        content: What the manifest will say of it.
        error: Why it could not be written, if so.
    """

    number: int
    step: int
    content: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """How a checkpoint went.

    Attributes:
        generation, number: Which; see `Part`.
        step: Steps committed then.
        error: Why there is none, if so.
    """

    generation: int
    number: int
    step: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint that a run can resume from.

    Attributes:
        step: Steps committed when it was written.
        name: Its name in the storage.
    """

    step: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress:
    """How far a worker has come, as its agent reads it from the arena.

    Attributes:
        step: Steps committed.
        total_steps: Steps of the run; 0 until the worker knows, and for a script.
        epoch: The current epoch, from 0.
        epochs: Epochs of the run.
        loss: The loss of the newest step; None before the first, and where it is not finite.
        samples: Samples of the steps that this worker saw committed, of all workers.
        phase: What the worker is doing: the name of an `arena.memory.Phase`, lower case.
        phase_seconds: Seconds spent in each phase, up to the last change of phase.
    """

    step: int
    total_steps: int
    epoch: int
    epochs: int
    loss: float | None
    samples: int
    phase: str
    phase_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How an agent and its workers are.

    Attributes:
        host: The agent; one that was started anew has another name.
        number: Rises with every report of this agent.
        generation: The newest that it has heard of; 0 for none.
        stage: What it has reached there. HALT means that all its workers stand still.
        room: How many workers it can run.
        failed: Why workers of this generation died, by rank.
        committed: How many steps the replica of each of its workers has behind it, by rank; a
            worker without one is not in it. Said only where they stand still.
        rooted: The number of steps that would be committed with the reduced gradient that lies
            complete in this host's arena; 0 for none.
        finished: Workers that have reached the end of the run.
        result: What one of them reports of it.
        parts: Of a checkpoint that its workers have written and that is not settled, by rank.
        verdict: How the newest one went that it has heard of.
        asked: The number of the checkpoint that its workers were last asked for; 0 for none.
        stop: Whether it has heard that workers are to end.
        progress: How far each of its workers has come, by rank. For people: nothing is decided by
            it.
    """

    host: str
    number: int
    generation: int = 0
    stage: Stage = Stage.IDLE
    capacity: int = 0
    failed: Mapping[int, Failure] = field(default_factory=dict)
    committed: Mapping[int, int] = field(default_factory=dict)
    reduced_step: int = 0
    finished: frozenset[int] = frozenset()
    result: Mapping[str, Any] | None = None
    parts: Mapping[int, Part] = field(default_factory=dict)
    checkpoint_result: CheckpointResult | None = None
    requested_checkpoint: int = 0
    stop: bool = False
    progress: Mapping[int, WorkerProgress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The state from which a generation resumes.

    Attributes:
        step: How many steps are committed.
        donors: From whose replica each rank takes its state: its own if it has it already, or
            can complete it from the reduced gradient on its host. Empty if no rank has a state:
            then all load `checkpoint`.
        checkpoint: Name of the newest readable checkpoint, if it is needed. None if there is none
            either, and training starts from the initial values. Workers that find damage in it
            agree on an older one; see `core.restore_agreement`.
    """

    step: int
    donors: Mapping[int, int]
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """How an agent and its workers should be.

    Attributes:
        generation: What they are for.
        stage: What is to be reached.
        ranks: The workers that this agent is to have.
        anew: Whether none of them may be of an older generation: all are ended and forked anew.
        members: The host of every rank.
        start: From where to go on; known from stage RUN on.
        verdict: How the newest checkpoint went.
        save: The number of the checkpoint that workers are to begin after the step in hand, unless
            they have begun it already; 0 for none. See `Part`.
        stop: Whether workers are to end after the step in hand.
        watched: Whether a command shows the run's progress: statuses come more often then.
        reason: Why the run is over for this host, at stage END; empty if all went well.
    """

    generation: int
    stage: Stage
    ranks: tuple[int, ...] = ()
    restart_all: bool = False
    members: Mapping[int, str] = field(default_factory=dict)
    resume_point: ResumePoint | None = None
    checkpoint_result: CheckpointResult | None = None
    requested_checkpoint: int = 0
    stop: bool = False
    watched: bool = False
    reason: str = ""
