"""Run: the coordinator's machine. It keeps who is in, and brings all of them to the same place.

    too few ──────▶ HALT ──all stand still──▶ settle ──▶ RUN ──all finished──▶ END
       ▲              │ ▲                                 │
       └─ room lost ──┘ └── a worker or host is lost, or there is room for more: a new generation

Every change of membership is a generation of its own, begun by halting all. A fault while one is
being formed needs no rule: it begins the next. Where there is doubt, as after a restart of the
coordinator in the middle of one, it begins the next too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.actions import (
    AppendToJournal,
    FindCheckpoint,
    GenerationOpened,
    JournalEntry,
    RemovePartialCheckpoints,
    RunAction,
    RunEnded,
    SendDesiredState,
)
from holdfast.core.checkpoint_tracker import CheckpointTracker
from holdfast.core.events import (
    AgentLost,
    CheckpointCompleted,
    CheckpointFound,
    Disconnected,
    ProgressRequested,
    RunEvent,
    StatusReceived,
    StopReceived,
    Tick,
)
from holdfast.core.failures import is_state_untrusted, root_cause
from holdfast.core.heartbeats import Heartbeats
from holdfast.core.placement import by_host, in_words, place
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import (
    DesiredState,
    Failure,
    ResumePoint,
    Stage,
    Status,
    StoredCheckpoint,
)
from holdfast.core.restart_budget import RestartBudget
from holdfast.core.resume_point import choose_resume_point, resume_from


class CoordinatorStateMachine:
    """One run of a job.

    Args:
        policy: The user's.
        facts: What was recorded before the coordinator was restarted.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        generation, members, stage, resume_point: As in the newest desired state. After a restart
            the stage is IDLE until all members have reported, and there is no resume point.
        reason: Why the run failed, once it has.
        culprit: The rank that failed last, and how.
        result: What a worker that has finished reports of the run.
        heartbeats: When each host was heard.
        watched: Whether a command shows the run's progress.
    """

    def __init__(self, policy: RecoveryPolicy, facts: Iterable[JournalEntry], now: float) -> None:
        self.policy = policy
        self.generation, self.stage, self.reason = 0, Stage.IDLE, ""
        self.members: Mapping[int, str] = {}  # orders and facts hold it too: replaced, not changed
        self.resume_point: ResumePoint | None = None
        self.root_cause: tuple[int, Failure] | None = None
        self.result: Mapping[str, Any] | None = None
        self._restart_budget = RestartBudget(policy, now)
        self._checkpoints = CheckpointTracker(policy.checkpoint_s, now)
        self._stop = self._restart_all = self.watched = False
        for fact in facts:
            self._replay(fact)
        self._hosts: dict[str, Status] = {}
        self._fenced: dict[str, None] = {}
        self._capacity, self._finished = 0, set[int]()
        self.heartbeats = Heartbeats(
            interval_s=policy.heartbeat_s, floor_s=policy.heartbeat_timeout_s
        )
        self._grow_at: float | None = None
        self._regrow_from = now
        self._join_deadline: float | None = now + policy.join_timeout_s
        self._member_hosts = by_host(self.members)
        self._waiting = dict.fromkeys(self._member_hosts)
        for host in self._waiting:
            self.heartbeats.heard(host, now)

    def handle(self, event: RunEvent, now: float) -> list[RunAction]:  # noqa: PLR0911  # an event
        """Take note of `event`; returns what is to be done, in order."""
        match event:
            case StatusReceived(status):
                return self._on_status(status, now)
            case Disconnected(host):
                self.heartbeats.hurry(host, now + self.policy.reconnect_s)
                return []
            case AgentLost(host):
                self.heartbeats.forget(host)
                return self._fence([host], "was lost", now)
            case CheckpointCompleted(verdict):
                self._checkpoints.on_completed(verdict, now)
                return self._send_desired_state(self._member_hosts)
            case CheckpointFound(checkpoint):
                return self._on_checkpoint_found(checkpoint, now)
            case StopReceived() | ProgressRequested():
                self._stop |= isinstance(event, StopReceived)
                self.watched |= isinstance(event, ProgressRequested)
                return self._send_desired_state(self._member_hosts)
            case Tick():
                return self._on_tick(now)

    def next_deadline(self) -> float | None:
        """When a Tick is due, if nothing else happens."""
        if self.stage == Stage.END:
            return None
        save_at = self._checkpoints.next_deadline() if self.stage == Stage.RUN else None
        waits = (self.heartbeats.next_deadline(), self._grow_at, self._join_deadline, save_at)
        return min((wait for wait in waits if wait is not None), default=None)

    def waiting_for(self) -> str:
        """What has to happen before the run can make progress, in words; empty if nothing has."""
        if self.stage == Stage.END:
            return ""
        if self._waiting:
            verb = {Stage.IDLE: "report", Stage.HALT: "be ready", Stage.RUN: "resume"}[self.stage]
            missing = {host: self._member_hosts[host] for host in self._waiting}
            return f"{in_words(missing)} to {verb}"
        wanted, joined = self.policy.min_workers, len(self.members)
        if joined < wanted:
            more = wanted - joined
            return f"{more} more worker{'s'[: more > 1]} ({joined} of {wanted} joined)"
        return "the newest checkpoint to be found" if self.stage == Stage.HALT else ""

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        assert all(0 <= rank < self.policy.world_size for rank in self.members)
        assert list(self.members) == sorted(self.members)
        if self.stage != Stage.IDLE:  # where it is still to be found out who is lost
            assert not self._fenced.keys() & set(self.members.values())
        assert not self._fenced.keys() & self._hosts.keys()
        assert self._waiting.keys() <= self._member_hosts.keys()
        assert self._capacity == sum(status.capacity for status in self._hosts.values())
        if self.stage == Stage.RUN:
            assert len(self.members) >= self.policy.min_workers
            assert not (self.resume_point and self.resume_point.donors) or (
                self.resume_point.donors.keys() == self.members.keys()
            )

    def _replay(self, fact: JournalEntry) -> None:
        match fact:
            case GenerationOpened(generation, members, anew):
                self.generation, self.members, self._restart_all = generation, members, anew
            case RunEnded(reason, culprit, result):
                self.stage, self.reason = Stage.END, reason
                self.root_cause, self.result = culprit, result

    def _on_status(self, status: Status, now: float) -> list[RunAction]:
        host = status.host
        if self.stage == Stage.END:
            return self._send_desired_state([host])
        if host in self._fenced or status.generation > self.generation:
            reason = "this agent was given up, or belongs to another run; start it anew"
            return [
                SendDesiredState(
                    host, DesiredState(generation=self.generation, stage=Stage.END, reason=reason)
                )
            ]
        known = self._hosts.get(host)
        if known is not None and status.number < known.number:
            return []  # one with the same number is said again, on a new connection
        self.heartbeats.heard(host, now)
        self._hosts[host] = status
        self._capacity += status.capacity - (known.capacity if known else 0)
        self._stop |= status.stop  # asked of one before us
        if self.stage == Stage.IDLE and self.members:
            return self._recover(now, host)
        if host in self._member_hosts:
            return self._on_member_status(status, now)
        return self._grow_if_due(now)

    def _on_member_status(self, status: Status, now: float) -> list[RunAction]:
        if status.generation == self.generation:
            if status.failed:
                return self._on_worker_failure(status, now)
            self._finished |= status.finished
            self.result = status.result or self.result
            if self._finished >= self.members.keys():
                return self._end("")
            self._checkpoints.on_reported_result(status.checkpoint_result)
        elif (
            self.stage == Stage.HALT and is_state_untrusted(status.failed) and not self._restart_all
        ):
            self._restart_all = True  # another failure came first
            return self._open_generation(now)
        if self._is_behind(status):
            return self._send_desired_state([status.host])
        self._waiting.pop(status.host, None)
        if status.parts:
            return [*self._checkpoints.collect(status, self.members)]
        return self._choose_resume_point(now) if self._is_ready else self._grow_if_due(now)

    def _is_behind(self, status: Status) -> bool:
        """Whether an agent has not done, or heard of, all that it should."""
        return (
            status.generation < self.generation
            or status.stage < self.stage
            or status.stop != self._stop
            or status.requested_checkpoint < self._checkpoints.requested
            or self._checkpoints.has_result_for(status)
        )

    def _on_worker_failure(self, status: Status, now: float) -> list[RunAction]:
        self.members = {
            rank: host for rank, host in self.members.items() if rank not in status.failed
        }
        self._restart_all |= is_state_untrusted(status.failed)
        cause = root_cause(status.failed)
        if cause is None:
            return self._open_generation(now)
        self.root_cause, (rank, failure) = cause, cause
        step = None if self.resume_point is None else self.resume_point.step
        what = f"rank {rank} {failure.cause}"
        if failure.fatal:
            return self._end(what)
        repeated = self._restart_budget.on_failure(rank, failure, step, now)
        return self._end(repeated) if repeated else self._on_loss(what, now)

    def _recover(self, now: float, *hosts: str) -> list[RunAction]:
        """After a restart: once no more is to be heard, go on if all have gone on meanwhile."""
        for host in hosts:
            self._waiting.pop(host, None)
        if self._waiting:
            return []
        known = [self._hosts[host] for host in self._member_hosts if host in self._hosts]
        if any((each.generation, each.stage) == (self.generation, Stage.RUN) for each in known):
            self._restart_all = self.policy.restart_all
        self._restart_all |= any(is_state_untrusted(status.failed) for status in known)
        if all(self._is_running(host) for host in self._member_hosts):
            self.stage, self._join_deadline = Stage.RUN, None
            return [action for status in known for action in self._on_member_status(status, now)]
        return self._open_generation(now)

    def _is_running(self, host: str) -> bool:
        status = self._hosts.get(host)
        return (
            status is not None
            and (status.generation, status.stage) == (self.generation, Stage.RUN)
            and not status.failed
        )

    def _on_tick(self, now: float) -> list[RunAction]:
        if self.stage == Stage.END:
            return []
        actions = self._fence(self.heartbeats.suspects(now), "fell silent", now)
        if actions:
            return actions
        if self._join_deadline is not None and now >= self._join_deadline:
            return self._end(
                f"{len(self.members)} of {self.policy.min_workers} needed workers could be had "
                f"within {self.policy.join_timeout_s:.0f} s"
            )
        return self._grow_if_due(now) or self._request_checkpoint_if_due(now)

    def _request_checkpoint_if_due(self, now: float) -> list[RunAction]:
        """Ask for a checkpoint if it is time to; an agent that missed it is told by its report."""
        if self.stage == Stage.RUN and self._checkpoints.request_if_due(self.generation, now):
            return self._send_desired_state(self._member_hosts)
        return []

    def _fence(self, lost: Sequence[str], why: str, now: float) -> list[RunAction]:
        """Fence hosts, and go on without them where they are members."""
        for host in lost:
            self._fenced[host] = None
            if host in self._hosts:
                self._capacity -= self._hosts.pop(host).capacity
        if self.stage == Stage.END or not any(host in self._member_hosts for host in lost):
            return []
        if self.stage == Stage.IDLE:
            return self._recover(now, *lost)
        self.root_cause = None
        return self._on_loss(f"{', '.join(lost)} {why}", now)

    def _on_loss(self, what: str, now: float) -> list[RunAction]:
        """Go on without what was lost, unless that was once too often."""
        self._regrow_from = now + self.policy.regrow_delay_s
        too_many = self._restart_budget.on_loss(what, now)
        return self._end(too_many) if too_many else self._open_generation(now)

    def _grow_if_due(self, now: float) -> list[RunAction]:
        """Use new room: at once if that makes the world full, else when more had time to come."""
        size = min(self._capacity, self.policy.world_size)
        if size <= len(self.members) or size < self.policy.min_workers:
            self._grow_at = None
            return []
        if self._grow_at is None:
            wait_s = 0.0 if size == self.policy.world_size else self.policy.last_call_s
            rest_until = (
                now if self._lacks_workers else self._regrow_from
            )  # then nobody trains anyway
            self._grow_at = max(now + wait_s, rest_until)
        return self._open_generation(now) if now >= self._grow_at else []

    def _open_generation(self, now: float) -> list[RunAction]:
        """Begin a generation with all for whom there is room, by halting them."""
        before = self._member_hosts
        room = {host: status.capacity for host, status in self._hosts.items()}
        present = {rank: host for rank, host in self.members.items() if host in room}
        if now < self._regrow_from and len(present) >= self.policy.min_workers:
            room = dict(Counter(present.values()))
        self.members = place(self.policy.world_size, room, present)
        self._member_hosts = by_host(self.members)
        self.generation += 1
        self.stage, self.resume_point, self._grow_at = Stage.HALT, None, None
        self._finished.clear()
        self._checkpoints.on_generation_opened()
        self._waiting = dict.fromkeys(self._member_hosts)
        if not self._lacks_workers:
            self._join_deadline = None
        elif self._join_deadline is None:
            self._join_deadline = now + self.policy.join_timeout_s
        left = [host for host in before if host in room and host not in self._member_hosts]
        self._restart_all |= self.policy.restart_all
        record = AppendToJournal(GenerationOpened(self.generation, self.members, self._restart_all))
        return [record, *self._send_desired_state([*self._member_hosts, *left])]

    def _choose_resume_point(self, now: float) -> list[RunAction]:
        """All members have halted: resume from the state of one, or else from a checkpoint."""
        found = choose_resume_point(
            self.members, [self._hosts[host] for host in self._member_hosts]
        )
        return [FindCheckpoint()] if found is None else self._resume(found, now)

    def _on_checkpoint_found(
        self, checkpoint: StoredCheckpoint | None, now: float
    ) -> list[RunAction]:
        if not self._is_ready:
            return []  # a member was lost while the storage was read
        return self._resume(resume_from(checkpoint), now)

    def _resume(self, start: ResumePoint, now: float) -> list[RunAction]:
        self._restart_budget.on_resumed(now)
        self.resume_point = start
        self.stage, self._restart_all = Stage.RUN, self.policy.restart_all
        self._waiting = dict.fromkeys(self._member_hosts)
        return [RemovePartialCheckpoints(), *self._send_desired_state(self._member_hosts)]

    def _end(self, reason: str) -> list[RunAction]:
        self.stage, self.reason = Stage.END, reason
        self.root_cause = self.root_cause if reason else None
        self._waiting.clear()
        return [
            AppendToJournal(RunEnded(reason, self.root_cause, self.result)),
            *self._send_desired_state(self._hosts),
        ]

    @property
    def _lacks_workers(self) -> bool:
        return len(self.members) < self.policy.min_workers

    @property
    def _is_ready(self) -> bool:
        """Whether all members have halted, and are enough to resume."""
        return self.stage == Stage.HALT and not self._waiting and not self._lacks_workers

    def _send_desired_state(self, hosts: Iterable[str]) -> list[RunAction]:
        return [
            SendDesiredState(
                host,
                DesiredState(
                    generation=self.generation,
                    stage=self.stage,
                    ranks=self._member_hosts.get(host, ()),
                    restart_all=self._restart_all,
                    members=self.members,
                    resume_point=self.resume_point,
                    checkpoint_result=self._checkpoints.result,
                    requested_checkpoint=self._checkpoints.requested,
                    stop=self._stop,
                    watched=self.watched,
                    reason=self.reason,
                ),
            )
            for host in hosts
        ]
