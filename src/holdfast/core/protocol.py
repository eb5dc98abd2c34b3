"""The messages between agents and the coordinator: each sends its whole state, repeatedly.

An agent sends a `Status` when something changes and at every heartbeat; the coordinator answers
with a `DesiredState`. Neither sends differences, so a message that is lost, late, duplicated or
reordered does no harm: the next one contains everything. A status with an older number and a
desired state of an older generation are ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class Stage(enum.IntEnum):
    """The progress of a generation on a host.

    IDLE    the host takes part in none
    HALT    its workers have halted: none commits, and each reports its committed step
    RUN     its workers train
    END     the run is over: workers and agent exit
    """

    IDLE = 0
    HALT = 1
    RUN = 2
    END = 3


FENCED: Final = "this agent was fenced, or belongs to another run; restart it"
"""The reason for the end of such an agent."""
LEFT: Final = "this host has left the run, which continues if other hosts take part in it"
"""The reason for the end of an agent that has asked for it."""
RUN_FAILED: Final = 3
"""The exit status of an agent whose run has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cause and meaning of a worker's failure.

    Attributes:
        cause: In words, without the rank.
        error: The class with which the run fails, as in `errors.BY_NAME`; empty for `WorkerFailed`.
        traceback: Place of user code on the worker, if that says more than the cause.
        fatal: True if it would happen again on any worker: the run ends with this error.
        repeatable: True if it may happen again on this worker, which caused it itself.
        state_untrusted: True if no worker's state is trusted: all restart from a checkpoint.
        is_cascading: True if another failure, which is counted, has caused it.
        cap: The most shards of a step that this worker has the memory for, if it ran out of memory
            and others can compute the rest.
    """

    cause: str
    error: str = ""
    traceback: str = ""
    fatal: bool = False
    repeatable: bool = False
    state_untrusted: bool = False
    is_cascading: bool = False
    cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most shards of a step that a rank has the memory for on its host.

    Attributes:
        host: Its host.
        shards: Their number; 0 if the rank is no member any more.
    """

    host: str
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Cause for which a worker leaves its generation for standby, and its condition of return.

    Attributes:
        rank: The worker.
        reason: Cause for which it slows down the others, in words.
        step: Steps committed when that was decided.
        threshold_s: It is fit once a shard takes it no longer, seconds.
        step_s: Time of a step, seconds; it measures itself every few steps.
    """

    rank: int
    reason: str
    step: int
    threshold_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A worker that keeps its rank and its process, and is no member until it is fit.

    Attributes:
        host: Its host.
        eviction: Cause of its standby.
    """

    host: str
    eviction: Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """A worker's part of a checkpoint, in the memory where it is staged.

    Attributes:
        number: The number of the checkpoint in its generation, from 1: one step may be tried twice.
        step: Steps committed then.
        count: Number of parts that the checkpoint has on this host.
        stall_s: Time that the worker was held up, seconds.
        content: Metadata that the host needs to write it; see `checkpoint.commit`.
        error: Problem that kept it from being staged; empty if it was.
        in_memory: True if it is a snapshot, which is written only if all workers are lost.
    """

    number: int
    step: int
    count: int
    stall_s: float = 0.0
    content: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checkpoint that a host has written, or could not write, and has not published yet.

    Attributes:
        number, step: Defined in `CheckpointPart`.
        root: Digest of the state in it; empty if it could not be written.
        error: Problem that kept it from being written; empty if it was.
        stall_s: Time that workers were held up, seconds.
        write_s: Time from then until it was written, seconds.
    """

    number: int
    step: int
    root: str = ""
    error: str = ""
    stall_s: float = 0.0
    write_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """The result of a checkpoint.

    Attributes:
        generation, number: Identify it; see `CheckpointPart`.
        step: Steps committed then.
        error: Cause of its failure; empty if at least one host has it.
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


@dataclass(frozen=True, slots=True)
class Probe:
    """A look at whether a host accepts connections.

    Attributes:
        number: Names it. Numbers of later probes are higher, also after a restart of the
            coordinator: it is the time of the request, monotonic microseconds of its host.
        host: The host.
        address: Address at which its agent accepts connections.
    """

    number: int
    host: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress:
    """Progress of a worker, as its agent reads it from the arena.

    Attributes:
        step: Steps committed.
        total_steps: Steps of the run; 0 until the worker knows, for a stream, and for a script.
        epoch: The current epoch, from 0.
        epochs: Epochs of the run; 0 until the worker knows, or if only steps end the run.
        loss: The loss of the newest step; None before the first, and where it is not finite.
        samples: Samples of the steps that this worker saw committed, of all workers.
        phase: Current phase of the worker: the name of an `arena.memory.Phase`, lower case.
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
    """The status of an agent and its workers.

    Attributes:
        host: The name of the agent; a restarted agent has a new one.
        number: Rises with every status of this agent.
        generation: The newest that it knows; 0 for none.
        stage: Stage that it has reached there.
        capacity: Number of workers that it can run.
        failed: Failures of workers of this generation, by rank, in the order of their exits.
        eviction: Worker of this generation that its workers ask to put on standby, if any.
        fit: Ranks of it on standby that can return: the worker is fast again, or has ended,
            so that a new one will be forked.
        addresses: Address at which each halted worker accepts connections of other hosts, by rank.
        numerics: Facts that decide the bits of its workers, by name; empty if there is one host.
        committed: Steps that are committed in the replica of each worker, by rank, without workers
            that have no state. Empty unless the workers have halted.
        left: Steps that are committed in the state that a lost worker has left, whole, by the rank
            of the worker that replaces it and has no state of its own.
        reduced_step: The number of steps that would be committed with the reduced gradient that is
            complete in this host's arena; 0 for none.
        finished: Workers that have reached the end of the run.
        result: Result of the run as one of them reports it.
        newest_checkpoint: The newest readable checkpoint on this host; None if there is none.
            Looked for only where the workers have halted and none of them has a state.
        draft: The oldest checkpoint of its workers that is written and has no result yet.
        lost_checkpoint: True if its workers have begun a checkpoint in an earlier generation that
            some of them did not live to stage.
        checkpoint_result: The newest result that it knows.
        requested_checkpoint: The number of the checkpoint that its workers were last asked for; 0
            for none.
        stop: True if its workers were asked to end.
        leaves: True if its host is about to leave the run.
        progress: Progress of each of its workers, by rank. For people: nothing is decided by
            it.
        probe_address: Address at which the agent accepts connections, a sign that its host is well.
        probed: Result of each probe that it was asked for, by number: true if it reached the host.
        severed: Hosts to which connections of its workers have broken or cannot be made, and
            whether new ones can be made.
    """

    # Who speaks, and how far it is.
    host: str
    number: int
    generation: int = 0
    stage: Stage = Stage.IDLE
    capacity: int = 0
    # Changes of membership.
    failed: Mapping[int, Failure] = field(default_factory=dict)
    eviction: Eviction | None = None
    fit: frozenset[int] = frozenset()
    # Once all of its workers have halted: what the resume point is chosen from.
    addresses: Mapping[int, str] = field(default_factory=dict)
    numerics: Mapping[str, str] = field(default_factory=dict)
    committed: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[int, int] = field(default_factory=dict)
    reduced_step: int = 0
    finished: frozenset[int] = frozenset()
    result: Mapping[str, Any] | None = None
    # Checkpoints of this host.
    newest_checkpoint: StoredCheckpoint | None = None
    draft: Draft | None = None
    lost_checkpoint: bool = False
    checkpoint_result: CheckpointResult | None = None
    requested_checkpoint: int = 0
    stop: bool = False
    leaves: bool = False
    progress: Mapping[int, WorkerProgress] = field(default_factory=dict)
    # The network between hosts, as this one sees it.
    probe_address: str = ""
    probed: Mapping[int, bool] = field(default_factory=dict)
    severed: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The state from which a generation resumes.

    Attributes:
        step: Number of committed steps.
        donors: From whose replica each rank takes its state: its own if it has it already, or
            can complete it from the reduced gradient on its host. Empty if no rank has a state:
            then all load `checkpoint`.
        checkpoint: Name of the newest readable checkpoint on any host, if it is needed. None if
            there is none either, and training starts from the initial values. Workers that find
            damage in it agree on an older one; see `core.checkpoints.restore_agreement`.
    """

    step: int
    donors: Mapping[int, int]
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """The state that an agent and its workers must reach.

    Attributes:
        generation: The newest generation.
        stage: The stage to reach in it.
        ranks: The workers that this agent must run.
        standbys: Ranks that it must keep on standby, if they run, and why.
        caps: The most shards of a step for ranks that have run out of memory.
        restart_all: True if none of them may be of an older generation: all are forked again.
        members: The host of every rank.
        addresses: Address at which each of them accepts connections of other hosts, at stage RUN.
        resume_point: Known from stage RUN on.
        checkpoint_result: The result of the newest checkpoint.
        requested_checkpoint: The number of the checkpoint that workers must begin after the current
            step, unless they have begun it already; 0 for none. See `CheckpointPart`.
        stop: True if workers must end after the current step.
        watched: True if a command shows the run's progress: statuses come more often then.
        probes: Hosts that this agent must probe.
        reason: Cause of the run's end for this host, at stage END; empty if all went well.
    """

    generation: int
    stage: Stage
    ranks: tuple[int, ...] = ()
    standbys: Mapping[int, Eviction] = field(default_factory=dict)
    caps: Mapping[int, int] = field(default_factory=dict)
    restart_all: bool = False
    members: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)
    resume_point: ResumePoint | None = None
    checkpoint_result: CheckpointResult | None = None
    requested_checkpoint: int = 0
    stop: bool = False
    watched: bool = False
    probes: tuple[Probe, ...] = ()
    reason: str = ""
