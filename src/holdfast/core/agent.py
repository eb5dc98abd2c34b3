"""The agent's state machine: brings its workers to the newest desired state.

    a newer generation ──▶ IDLE ──all workers halted──▶ HALT ──resume point──▶ RUN
                            ▲                            │                     │
                            └────────────────────────────┴─────────────────────┘

Which processes there should be follows from the desired state alone, so a worker that has failed,
one that was never started and one that belongs elsewhere need no rules of their own.

IDLE. The agent has entered a generation. It has woken all workers that wait in an older one
(`Abort`), and killed those that do not belong here or must restart. It forks the missing ones once
all that were killed have exited: until then these may write to the memory of their rank, or hold a
port. Then it waits for each member to halt. If all have halted and none has a state, it first looks
for a checkpoint of this host: its name is part of the report.

HALT. All members of this host have halted. The status reports their committed steps, the reduced
gradient in the arena and the states that lost workers have left. Only the desired state leads
further: the coordinator needs the reports of all hosts.

RUN. The workers train from the resume point. What they report goes into the status, which is sent
at once: a worker that has finished, a written checkpoint, an eviction, a broken connection.

END. The desired state says that the run is over for this agent. If all of its workers have
finished, they exit by themselves; else they are killed, and the newest snapshot is written.

A failure changes no stage. It is reported at once, and ends its generation on this host without
asking the coordinator, since no worker can finish a step there: `Abort` wakes the others, which
halt. From then on nothing is forked or resumed until the next generation comes. A worker may so
halt in a generation that this machine does not know yet; the report is kept.

A worker on standby keeps its process. It has to halt once: until then it may write to the memory
that members share. From then on no generation waits for it.

A status goes out at every change, and at intervals as a heartbeat. It is the whole state, with a
rising number, so none needs an answer, and a lost one is made good by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.actions import (
    Abort,
    AgentAction,
    FindCheckpoint,
    ForkWorker,
    KillWorker,
    ProbeHost,
    RemovePartialCheckpoints,
    RequestSave,
    RequestStop,
    ResumeWorkers,
    SendCheckpointResult,
    SendStatus,
    ShutDownAgent,
)
from holdfast.core.checkpoints.part_collector import Saving
from holdfast.core.events import (
    AgentEvent,
    CheckpointCompleted,
    CheckpointEvent,
    CheckpointFound,
    CheckpointPrepared,
    DesiredStateReceived,
    EvictionRequested,
    LeaveRequested,
    PartStaged,
    PeerReported,
    ProbeCompleted,
    Tick,
    WorkerExited,
    WorkerFinished,
    WorkerFit,
    WorkerHalted,
)
from holdfast.core.links import PeerProbes
from holdfast.core.protocol import DesiredState, Eviction, Failure, Stage, Status, StoredCheckpoint

WATCHED_INTERVAL_S: Final = 0.2
"""Interval of an agent's statuses while a command shows the run's progress, seconds."""
MAX_WATCHED_RATE: Final = 1000
"""Statuses of all hosts per second for which they come less often than that."""

_NOT_HALTED: Final = WorkerHalted(rank=-1, generation=0, committed=None, reduced_step=0)


@dataclass(slots=True)
class AgentWorker:
    """A worker process.

    Attributes:
        process: Its number.
        resumed_generation: The newest generation in which it was resumed, as a member.
        halted: Its newest report that it has halted; of generation 0 before the first.
    """

    process: int
    resumed_generation: int = 0
    halted: WorkerHalted = _NOT_HALTED

    @property
    def has_left(self) -> bool:
        """True if it has halted since it was a member."""
        return self.halted.generation > self.resumed_generation


class AgentStateMachine:
    """The workers of one agent.

    Args:
        host: The agent's name.
        capacity: Number of workers that it can run.
        heartbeat_s: Interval of its reports, seconds.
        now: This process's monotonic clock, seconds, as in every `now` here.
        probe_address: Defined in `Status`.

    Attributes:
        generation, stage: Defined in `Status`.
    """

    def __init__(
        self, host: str, capacity: int, heartbeat_s: float, now: float, probe_address: str = ""
    ) -> None:
        self.generation = 0
        self.stage = Stage.IDLE
        self._host = host
        self._capacity = capacity
        self._heartbeat_s = heartbeat_s
        self._desired = DesiredState(generation=0, stage=Stage.IDLE)
        self._workers: dict[int, AgentWorker] = {}
        self._ending: set[int] = set()
        self._failed: dict[int, Failure] = {}
        self._eviction: Eviction | None = None
        self._fit: set[int] = set()
        self._finished: set[int] = set()
        self._result: Mapping[str, Any] | None = None
        self._saving = Saving()
        self._searched_generation = 0
        self._has_found = False
        self._newest_checkpoint: StoredCheckpoint | None = None
        self._requested_checkpoint = 0
        self._stop = False
        self._leaves = False
        self._watched = False
        self._probe_address = probe_address
        self._probed = dict[int, bool | None]()
        self._peers = PeerProbes()
        self._addresses: Mapping[int, str] = {}
        self._number = 0
        self._processes = 0
        self._status_at = now

    def handle(self, event: AgentEvent, now: float) -> list[AgentAction]:  # noqa: PLR0911  # an event
        """Handle `event`; returns the actions to perform, in order."""
        if self.stage == Stage.END:
            return []
        match event:
            case DesiredStateReceived(desired):
                return [*self._probe(desired), *self._reconcile(desired, now)]
            case WorkerHalted():
                return self._on_worker_halted(event, now)
            case PartStaged() | WorkerFinished():
                return self._on_worker_progress(event, now)
            case CheckpointFound() | CheckpointPrepared() | CheckpointCompleted():
                return self._on_checkpoint_event(event, now)
            case WorkerExited():
                return self._on_worker_exit(event, now)
            case EvictionRequested() | WorkerFit():
                return self._on_standby_event(event, now)
            case LeaveRequested():
                is_new = not self._leaves
                self._leaves = True
                return [self._send_status(now)] if is_new else []
            case ProbeCompleted():
                return self._on_probe_completed(event, now)
            case PeerReported():
                return self._on_peer_reported(event)
            case Tick():
                return [self._send_status(now)] if now >= self._status_at else []

    def next_deadline(self) -> float | None:
        """Time at which a Tick is due, if nothing else happens."""
        return None if self.stage == Stage.END else self._status_at

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        assert self._workers.keys() <= {*self._desired.ranks, *self._desired.standbys}
        assert not self._workers.keys() & self._failed.keys()
        assert not self._ending & {worker.process for worker in self._workers.values()}
        if self.stage in (Stage.HALT, Stage.RUN) and not self._failed:
            assert self.ranks == self._desired.ranks
            assert not self.absent

    def _probe(self, desired: DesiredState) -> list[AgentAction]:
        """Begin the probes that were not asked for before, and forget those that are not now."""
        # Every desired state repeats the probes without a result, so each is begun only once.
        before = self._probed
        self._probed = {each.number: before.get(each.number) for each in desired.probes}
        return [ProbeHost(each) for each in desired.probes if each.number not in before]

    def _on_probe_completed(self, probed: ProbeCompleted, now: float) -> list[AgentAction]:
        is_asked = probed.number in self._probed  # else the coordinator knows enough by now
        if is_asked:
            self._probed[probed.number] = probed.is_reached
        has_changed = self._peers.on_probed(probed.number, is_reached=probed.is_reached)
        return [self._send_status(now)] if is_asked or has_changed else []

    def _on_peer_reported(self, reported: PeerReported) -> list[AgentAction]:
        host = self.members.get(reported.peer)
        if reported.generation != self.generation or self.stage != Stage.RUN or host is None:
            return []
        address = self._addresses.get(reported.peer, "")
        probes = self._peers.on_reported(host, address, is_broken=reported.is_broken)
        return [ProbeHost(probe) for probe in probes]

    def _reconcile(self, desired: DesiredState, now: float) -> list[AgentAction]:
        if desired.stage == Stage.END:
            # Workers that have finished exit by themselves. Others may wait, or be in a step.
            self.stage = Stage.END
            if not desired.reason and self._finished.issuperset(self.ranks):
                return [ShutDownAgent("")]
            ends = [Abort(desired.generation + 1), *self._kill_all()]
            return [*ends, *self._saving.write_snapshot(), ShutDownAgent(desired.reason)]
        actions: list[AgentAction] = []
        self._watched = desired.watched
        if desired.generation > self.generation:
            actions = self._enter(desired, now)
        # A desired state of an older generation came late, and has nothing to say any more.
        if desired.generation == self.generation:
            if desired.stop and not self._stop:
                self._stop = True
                actions += [RequestStop(), self._send_status(now)]
            if (
                desired.checkpoint_result is not None
                and desired.checkpoint_result.generation == self.generation
            ):
                actions += self._saving.on_result(desired.checkpoint_result)
            # All hosts have halted. After a failure here this generation cannot train any more.
            if (desired.stage, self.stage) == (Stage.RUN, Stage.HALT) and not self._failed:
                assert desired.resume_point is not None
                self.stage = Stage.RUN
                self._addresses = desired.addresses
                for worker in self._members_here.values():
                    worker.resumed_generation = self.generation
                self._saving.begin_generation(self.generation)
                actions += [
                    RemovePartialCheckpoints(self.generation),
                    ResumeWorkers(self.generation, desired.resume_point, desired.addresses),
                    self._send_status(now),
                ]
            # The number is requested again until the status shows it, but passed on only once.
            if (
                desired.requested_checkpoint > self._requested_checkpoint
                and self.stage == Stage.RUN
            ):
                self._requested_checkpoint = desired.requested_checkpoint
                actions += [
                    RequestSave(self.generation, desired.requested_checkpoint),
                    self._send_status(now),
                ]
        return actions

    def _enter(self, desired: DesiredState, now: float) -> list[AgentAction]:
        """Leave the generation before, and start or keep the workers of this one."""
        # Nothing of the generation before counts in this one, but the processes that it keeps.
        self._desired = desired
        self.generation = desired.generation
        self.stage = Stage.IDLE
        self._requested_checkpoint = 0
        self._failed.clear()
        self._peers.clear()
        self._finished.clear()
        self._saving.end_generation()
        self._newest_checkpoint = self._eviction = None
        self._fit.intersection_update(desired.standbys)
        survivors = () if desired.restart_all else (*desired.ranks, *desired.standbys)
        kills = self._kill_all(keep=survivors)
        forks = self._fork_missing()
        # The abort comes first: workers that wait for one that is killed then halt.
        abort = Abort(self.generation, forgets=desired.restart_all)
        return [abort, *kills, *forks, *self._halt_if_all_halted(now)]

    def _on_worker_halted(self, halted: WorkerHalted, now: float) -> list[AgentAction]:
        """A worker may know the next generation before we do, by a failure on this host."""
        worker = self._workers.get(halted.rank)
        if worker is None or halted.generation < max(self.generation, worker.halted.generation):
            return []
        worker.halted = halted
        return self._halt_if_all_halted(now)

    def _halt_if_all_halted(self, now: float) -> list[AgentAction]:
        is_complete = self._workers and self.ranks == self._desired.ranks
        if self.stage != Stage.IDLE or self.absent or self._failed or not is_complete:
            return []
        members = self._members_here.values()
        # Without a state on this host, its newest checkpoint counts: found once a generation.
        if members and all(worker.halted.committed is None for worker in members):
            if self._searched_generation != self.generation:
                self._searched_generation = self.generation
                self._has_found = False
                return [*self._saving.write_snapshot(), FindCheckpoint(self.generation)]
            if not self._has_found:
                return []
        self.stage = Stage.HALT
        return [self._send_status(now)]

    def _on_checkpoint_event(self, event: CheckpointEvent, now: float) -> list[AgentAction]:
        match event:
            case CheckpointFound(generation, found) if generation == self.generation:
                self._has_found = True
                self._newest_checkpoint = found
                return self._halt_if_all_halted(now)
            case CheckpointPrepared(generation, draft) if generation == self.generation:
                self._saving.on_prepared(draft)
                return [self._send_status(now)]
            case CheckpointCompleted(result) if result.generation == self.generation:
                return [SendCheckpointResult(result)]
        return []  # of a generation that is over

    @property
    def absent(self) -> list[int]:
        """Processes that have not halted yet: members in the current generation, those on standby
        since they were members.
        """
        return [
            each.process
            for rank, each in self._workers.items()
            if not (
                each.has_left
                if rank in self.standbys
                else each.halted.generation == self.generation
            )
        ]

    def _on_worker_progress(
        self, event: PartStaged | WorkerFinished, now: float
    ) -> list[AgentAction]:
        if isinstance(event, PartStaged):
            return [*self._saving.on_staged(event)]
        if event.generation != self.generation or event.rank not in self.ranks:
            return []
        self._finished.add(event.rank)
        self._result = event.result
        return [self._send_status(now)]

    def _on_standby_event(
        self, event: EvictionRequested | WorkerFit, now: float
    ) -> list[AgentAction]:
        if isinstance(event, WorkerFit) and event.rank in self.standbys:
            self._fit.add(event.rank)
        elif isinstance(event, EvictionRequested) and event.generation == self.generation:
            self._eviction = event.eviction
        else:
            return []
        return [self._send_status(now)]

    def _on_worker_exit(self, exited: WorkerExited, now: float) -> list[AgentAction]:
        worker = self._workers.get(exited.rank)
        if worker is None or worker.process != exited.process:  # we killed it ourselves
            # With the last of them gone, the memory of their ranks is free for new workers.
            self._ending.discard(exited.process)
            return self._fork_missing()
        # The others cannot finish a step without it: they halt before the coordinator knows.
        del self._workers[exited.rank]
        self._failed[exited.rank] = exited.failure
        return [Abort(self.generation + 1), self._send_status(now)]

    def _fork_missing(self) -> list[AgentAction]:
        """Fork the desired ranks that have no process, once all killed processes have exited."""
        if self._ending or self._failed or self.stage != Stage.IDLE:
            return []  # and for one on standby that has ended none is forked until it is a member
        missing = [rank for rank in self._desired.ranks if rank not in self._workers]
        forks: list[AgentAction] = [self._fork(rank) for rank in missing]
        self._workers = dict(sorted(self._workers.items()))
        return forks

    def _fork(self, rank: int) -> ForkWorker:
        self._processes += 1
        self._workers[rank] = AgentWorker(self._processes)
        return ForkWorker(rank, self.generation, self._processes)

    def _kill_all(self, keep: Sequence[int] = ()) -> list[AgentAction]:
        others = [rank for rank in self._workers if rank not in keep]
        kills = [KillWorker(rank, self._workers.pop(rank).process) for rank in others]
        self._ending.update(kill.process for kill in kills)
        return list(kills)

    @property
    def members(self) -> Mapping[int, str]:
        """The host of every rank of the generation."""
        return self._desired.members

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members whose workers run on this host."""
        return tuple(self._members_here)

    @property
    def standbys(self) -> Mapping[int, Eviction]:
        """The ranks of this host that are on standby, and why."""
        return self._desired.standbys

    @property
    def caps(self) -> Mapping[int, int]:
        """The most shards of a step for ranks that have run out of memory."""
        return self._desired.caps

    @property
    def _members_here(self) -> dict[int, AgentWorker]:
        return {rank: each for rank, each in self._workers.items() if rank not in self.standbys}

    @property
    def failed(self) -> Mapping[int, Failure]:
        """Failures of the generation's workers, by rank."""
        return self._failed

    def _send_status(self, now: float) -> SendStatus:
        # Heartbeats keep their times, whatever is sent between them: a generation begins on all
        # hosts at once, and would have all their heartbeats arrive at once from then on.
        self._number += 1
        watched_s = max(WATCHED_INTERVAL_S, len(self.members) / MAX_WATCHED_RATE)
        interval_s = watched_s if self._watched else self._heartbeat_s
        while self._status_at <= now:
            self._status_at += min(interval_s, self._heartbeat_s)
        members = {rank: each.halted for rank, each in self._members_here.items()}
        is_halted = self.stage == Stage.HALT
        return SendStatus(
            Status(
                host=self._host,
                number=self._number,
                generation=self.generation,
                stage=self.stage,
                capacity=self._capacity,
                failed=dict(self._failed),
                eviction=self._eviction,
                fit=frozenset(self._fit | (self.standbys.keys() - self._workers.keys())),
                addresses={rank: each.address for rank, each in members.items() if each.address},
                numerics=next((each.numerics for each in members.values()), {}),
                committed={
                    rank: each.committed
                    for rank, each in members.items()
                    if is_halted and each.committed is not None
                },
                left={
                    rank: each.left
                    for rank, each in members.items()
                    if is_halted and each.committed is None and each.left is not None
                },
                reduced_step=max((w.halted.reduced_step for w in self._workers.values()), default=0)
                if is_halted
                else 0,
                finished=frozenset(self._finished),
                result=self._result if self._finished else None,
                newest_checkpoint=self._newest_checkpoint if is_halted else None,
                draft=self._saving.draft,
                lost_checkpoint=is_halted and self._saving.is_incomplete,
                checkpoint_result=self._saving.result,
                requested_checkpoint=self._requested_checkpoint,
                stop=self._stop,
                leaves=self._leaves,
                probe_address=self._probe_address,
                probed={
                    number: is_reached
                    for number, is_reached in self._probed.items()
                    if is_reached is not None
                },
                severed=dict(self._peers.severed),
            )
        )
