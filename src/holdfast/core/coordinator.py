"""The coordinator's state machine: decides who is in, and brings all members to one resume point.

    IDLE ──enough workers──▶ HALT ──all halted──▶ RUN ──all finished──▶ END
                             ▲  │                  │
                             └──┴── a failure, or capacity for more workers: a new generation

A generation is one fixed membership with a rising number: the host of every rank. Every change of
membership is a generation of its own, which begins by halting all members: a failure, a host that
joins, a worker that goes to standby or returns. So a failure while a generation is being formed
needs no rule: it opens the next one. In doubt, as after a restart of the coordinator in the middle
of one, the machine opens the next one too.

IDLE. This coordinator has opened no generation. At the start of a run it waits for enough workers.
After a restart the journal names the newest generation, but not what became of it. Then it waits
for a report of every member that is not lost. If all of them train, it adopts the generation at
stage RUN, and no worker has noticed. Else it opens the next one.

HALT. Each agent ends the generations before on its host, forks the workers that are missing, and
reports HALT once all of its workers have halted. No worker commits from then on, so the reported
numbers of committed steps are final. With the last report the machine chooses the resume point. If
there are too few workers it stays here, until more join or the time to join is over.

RUN. Every agent gets the same resume point, and its workers train from it. The machine requests
checkpoints and passes on their results, until a status reports a failure, the end of training or a
worker for standby, until a host falls silent, or until there is capacity for more workers.

END. The run is over, well or with a reason. Whatever an agent reports, it is sent the end again.

Recovery takes two rounds on purpose. In the first, HALT, each host reports the state it has. In the
second, RUN, all learn which state is used. The choice needs all reports, since a step that one
worker may have committed must be committed by all (see `core.resume_point`).

Messages carry whole states, not differences (see `core.protocol`). The next status of an agent that
has missed one shows that it is behind, and it is sent the desired state again.

A host that is lost is fenced: it never takes part again under this name, and its statuses are
answered with the end. So if it was only cut off, its workers never meet those in their place.

The journal records that a generation was opened, or that the run has ended, before any agent hears
of it. So a successor neither uses a number twice nor continues a run that is over. Whatever else it
needs (committed steps, checkpoint results, the request to stop) is in the statuses of agents.

The machine reads no clock and performs nothing. `handle` takes an event and returns actions, which
the dispatcher performs in order: a journal entry is durable before any later action.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.actions import (
    AppendToJournal,
    GenerationOpened,
    JournalEntry,
    ProbeHost,
    RefuseHost,
    RunAction,
    RunEnded,
    SendDesiredState,
)
from holdfast.core.checkpoints.tracker import CheckpointTracker
from holdfast.core.events import (
    AgentLost,
    Disconnected,
    ProbeCompleted,
    ProgressRequested,
    RunEvent,
    ScaleRequested,
    StatusReceived,
    StopReceived,
    Tick,
)
from holdfast.core.failures import is_state_untrusted, root_cause
from holdfast.core.heartbeats import Heartbeats
from holdfast.core.links import Links
from holdfast.core.membership import Membership, in_words
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import FENCED, LEFT, DesiredState, Failure, ResumePoint, Stage, Status
from holdfast.core.reachability import Reachability
from holdfast.core.restart_budget import RestartBudget
from holdfast.core.resume_point import choose_resume_point

IDLE = Stage.IDLE
HALT = Stage.HALT
RUN = Stage.RUN
END = Stage.END


class CoordinatorStateMachine:
    """The state of one run of a job.

    Args:
        policy: The user's.
        journal: Entries from before the coordinator was restarted.
        now: This process's monotonic clock, seconds, as in every `now` here.
        addresses: Addresses at which hosts accept connections that have not reported yet.

    Attributes:
        generation, stage: Values of the newest desired state. At stage IDLE a restarted coordinator
            does not know the state of its members yet.
        resume_point: Start of the generation; None if it has none yet, or the coordinator was
            restarted since.
        reason: Cause of the run's failure, once it has failed.
        root_cause: The rank that failed last, and how.
        result: Result of the run as a worker that has finished reports it.
        heartbeats: Deadline of each host.
        watched: True if a command shows the run's progress.
    """

    def __init__(
        self,
        policy: RecoveryPolicy,
        journal: Iterable[JournalEntry],
        now: float,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self.policy = policy
        self.generation = 0
        self.stage = IDLE
        self.reason = ""
        self.resume_point: ResumePoint | None = None
        self.root_cause: tuple[int, Failure] | None = None
        self.result: Mapping[str, Any] | None = None
        self._restart_budget = RestartBudget(policy, now)
        self._checkpoints = CheckpointTracker(policy.checkpoint_s, now)
        self._stop = self._restart_all = self.watched = False
        self._members = Membership(policy, self._replay(journal), now)
        self._finished = set[int]()
        self._addresses = dict[int, str]()
        silent_s = policy.heartbeat_timeout_s
        self.heartbeats = Heartbeats(interval_s=policy.heartbeat_s, floor_s=silent_s)
        self._reachability = Reachability(silent_s, addresses or {})
        self._links = Links()
        # Every member has as long to report after a restart as if it had just been heard.
        self._waiting = dict(self._members.by_host)
        for host in self._members.hosts:
            self.heartbeats.record(host, now)

    @property
    def members(self) -> Mapping[int, str]:
        """The host of every rank, without ranks that have failed since."""
        return self._members.members

    @property
    def is_full(self) -> bool:
        """True if the members are those of a full world."""
        return self._members.is_full

    @property
    def hosts(self) -> Collection[str]:
        """The hosts that have joined and are not fenced."""
        return self._members.statuses.keys()

    def handle(self, event: RunEvent, now: float) -> list[RunAction]:
        """Take note of `event`; returns what is to be done, in order."""
        match event:
            case StatusReceived(status):
                return self._on_status(status, now)
            case Disconnected(host):
                self.heartbeats.shorten_deadline(host, now + self.policy.reconnect_s)
                return []
            case ProbeCompleted():
                self._reachability.on_probed(event.number, now, is_reached=event.is_reached)
                return []
            case AgentLost(host):
                return self._fence([host], "was lost", now)
            case StopReceived() | ProgressRequested() | ScaleRequested():
                return self._on_request(event, now)
            case Tick():
                return self._on_tick(now)

    def _on_request(
        self, request: StopReceived | ProgressRequested | ScaleRequested, now: float
    ) -> list[RunAction]:
        """Do what the user asks for."""
        if isinstance(request, StopReceived) and request.at_once and self.stage != END:
            return self._end("the run was aborted")
        if isinstance(request, ScaleRequested):
            self._members.scale(request.workers)
            return [] if self.stage == END else self._resize_if_due(now)
        self._stop |= isinstance(request, StopReceived)
        self.watched |= isinstance(request, ProgressRequested)
        return self._send_desired_state(self._members.hosts)

    def next_deadline(self) -> float | None:
        """Time at which a Tick is due, if nothing else happens."""
        if self.stage == END:
            return None
        save_at = self._checkpoints.next_deadline() if self.stage == RUN else None
        waits = (
            self.heartbeats.next_deadline(),
            self._reachability.next_deadline(),
            self._links.next_deadline(),
            self._members.next_deadline(),
            save_at,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    @property
    def lacks_workers(self) -> bool:
        """True if the run can only continue once more hosts join."""
        return self.stage in (IDLE, HALT) and self._members.lacks_workers

    def waiting_for(self) -> str:
        """Condition without which the run makes no progress, in words; empty if there is none."""
        if self.stage == END:
            return ""
        if self._waiting:
            verb = {IDLE: "report", HALT: "be ready", RUN: "resume"}[self.stage]
            return f"{in_words(self._waiting)} to {verb}"
        return "" if self.stage == RUN else self._members.missing()

    def refuses_size(self, workers: int) -> str:
        """Why the run cannot have so many workers now, in words; empty if it can."""
        return self._members.refuses_size(workers)

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        self._members.check_invariants(is_known=self.stage in (HALT, RUN))
        assert self._waiting.keys() <= self._members.by_host.keys()
        if self.stage == RUN:
            assert not self._members.lacks_workers
            donors = self.resume_point.donors if self.resume_point else {}
            assert not donors or donors.keys() == self.members.keys()

    def _replay(self, journal: Iterable[JournalEntry]) -> GenerationOpened:
        """Take over what was recorded; returns the newest generation."""
        newest = GenerationOpened(0, {})
        for entry in journal:
            match entry:
                case GenerationOpened():
                    newest = entry
                    self.generation = entry.generation
                    self._restart_all = entry.restart_all
                case RunEnded():
                    self.stage = END
                    self.reason = entry.reason
                    self.root_cause = entry.root_cause
                    self.result = entry.result
        return newest

    def _on_status(self, status: Status, now: float) -> list[RunAction]:
        host = status.host
        if self.stage == END:
            return self._send_desired_state([host])
        # A newer generation than ours is of another run, or of a journal that was lost.
        if self._members.is_fenced(status) or status.generation > self.generation:
            ended = DesiredState(generation=self.generation, stage=END, reason=FENCED)
            return [SendDesiredState(host, ended)]
        if status.leaves or not self._members.join(status):
            return self._leave(host, now) if status.leaves else []
        # The host takes part, and is alive: whatever was suspected of it is wrong.
        self.heartbeats.record(host, now)
        self._reachability.on_heard(status, now)
        self._stop |= status.stop  # a predecessor of this coordinator has sent it
        if self.stage == IDLE and self.members:
            return self._recover(now, host)
        if self._members.has_ranks(host):
            return self._on_member_status(status, now)
        return self._resize_if_due(now)

    def _on_member_status(self, status: Status, now: float) -> list[RunAction]:
        if status.generation == self.generation:
            # A change of membership ends the generation: the rest of the status is void.
            if status.failed or self._members.change_standbys(status):
                self._members.change_caps(status)
                return self._on_failed_workers(status.failed, now)
            self._links.on_status(status, now)
            self._finished |= status.finished
            self.result = status.result or self.result
            if self._finished >= self.members.keys():
                return self._end("")
            self._checkpoints.on_reported_result(status.checkpoint_result)
        elif self.stage == HALT and (again := self._on_late_failures(status, now)):
            return again
        if self._is_behind(status):
            return self._send_desired_state([status.host])
        # The host has reached generation and stage: it is not waited for any more.
        self._waiting.pop(status.host, None)
        if status.draft is not None:
            is_decided = self._checkpoints.collect(status, self._members.by_host, now)
            return self._send_desired_state(self._members.hosts) if is_decided else []
        return self._choose_resume_point(now) if self._is_ready else self._resize_if_due(now)

    def _on_late_failures(self, status: Status, now: float) -> list[RunAction]:
        """Handle failures of the generation before with which this one would not do."""
        # It would use a worker that has too little memory. Others in the status were handled.
        if short := self._members.change_caps(status):
            return self._on_failed_workers(short, now)
        # It would keep states that are wrong.
        if is_state_untrusted(status.failed) and not self._restart_all:
            self._restart_all = True
            return self._open_generation(now)
        return []

    def _is_behind(self, status: Status) -> bool:
        """True if an agent has not done, or heard of, all that it should."""
        return (
            status.generation < self.generation
            or status.stage < self.stage
            or status.stop != self._stop
            or status.requested_checkpoint < self._checkpoints.requested
            or self._checkpoints.has_result_for(status)
        )

    def _on_failed_workers(self, failed: Mapping[int, Failure], now: float) -> list[RunAction]:
        """Continue without the workers that have failed; none have where only standbys changed."""
        self._members.remove(failed)
        self._restart_all |= is_state_untrusted(failed)
        cause = root_cause(failed)
        # Only standbys have changed, or all failures are cascading: there is none to count.
        if cause is None:
            return self._open_generation(now)
        self.root_cause = cause
        (rank, failure) = cause
        what = f"rank {rank} {failure.cause}"
        # Recovery cannot help against an error that every worker would meet again.
        if failure.fatal or (failure.cap is not None and not self._members.can_compute):
            return self._end(what)
        step = self.resume_point.step if self.resume_point else None
        repeated = self._restart_budget.on_failure(rank, failure, step, now)
        return self._end(repeated) if repeated else self._on_failure(what, now)

    def _recover(self, now: float, *hosts: str) -> list[RunAction]:
        """After a restart: once all members have reported, continue if all are training."""
        for host in hosts:
            self._waiting.pop(host, None)
        if self._waiting:
            return []
        statuses = self._members.of_generation
        for status in statuses:
            self._members.change_caps(status)
        here = (self.generation, RUN)
        training = [each for each in statuses if (each.generation, each.stage) == here]
        # The journal says how the generation was opened. Once a member trains, all were restarted.
        if training:
            self._restart_all = self.policy.restart_all
        self._restart_all |= any(is_state_untrusted(status.failed) for status in statuses)
        are_all = len(training) == len(self._members.by_host) and not self._members.lacks_workers
        if not are_all or any(each.failed for each in training):
            return self._open_generation(now)
        # All members train and none is lost: the generation is adopted as it is.
        self.stage = RUN
        self._addresses = self._members.addresses
        self._members.on_recovered()
        return [action for status in training for action in self._on_member_status(status, now)]

    def _on_tick(self, now: float) -> list[RunAction]:
        if self.stage == END:
            return []
        # What ends the generation comes first; growth and checkpoints can wait for the next tick.
        probes = self._probe(now)
        lost = self._reachability.lost(now)
        actions = [*probes, *(self._fence(lost, "fell silent", now) or self._check_links(now))]
        if actions:
            return actions
        if too_few := self._members.join_timeout(now):
            return self._end(too_few)
        return self._resize_if_due(now) or self._request_checkpoint_if_due(now)

    def _request_checkpoint_if_due(self, now: float) -> list[RunAction]:
        """Ask for a checkpoint if it is time to; an agent that missed it is told by its report."""
        if self.stage == RUN and self._checkpoints.request_if_due(self.generation, now):
            return self._send_desired_state(self._members.hosts)
        return []

    def _probe(self, now: float) -> list[RunAction]:
        """Probe hosts that fell silent, from here and from another host."""
        silent = self.heartbeats.suspects(now)
        statuses = self._members.statuses
        probes = self._reachability.probes_due(silent, statuses, now)
        witnesses = dict.fromkeys(witness for _, witness in probes if witness)
        return [*(ProbeHost(probe) for probe, _ in probes), *self._send_desired_state(witnesses)]

    def _check_links(self, now: float) -> list[RunAction]:
        """Continue without a host that others cannot reach, or let all connect again."""
        due = self._links.next_deadline()
        if due is None or now < due:
            return []
        hosts = [host for host in self._members.statuses if host in self._members.by_host]
        decision = self._links.decide(hosts, self._reachability.suspected, now)
        if decision is None:
            return []
        fence = decision.fence
        reason = decision.reason
        return self._fence(fence, reason, now) if fence else self._on_failure(reason, now)

    def _refuse(self, unlike: Mapping[str, str], now: float) -> list[RunAction]:
        """Fence hosts that would compute other bits, and go ahead without them."""
        self._remove(list(unlike))
        refused = (RefuseHost(host, reason) for host, reason in unlike.items())
        return [*refused, *self._open_generation(now)]

    def _remove(self, hosts: Sequence[str]) -> bool:
        """Remove hosts for good; returns whether any of them runs ranks."""
        for host in hosts:
            self.heartbeats.remove(host)
            self._reachability.remove(host)
        return self._members.fence(hosts)

    def _fence(self, lost: Sequence[str], why: str, now: float) -> list[RunAction]:
        """Fence hosts, and continue without them where they run ranks."""
        if not self._remove(lost) or self.stage == END:
            return []
        if self.stage == IDLE:  # a restarted coordinator may have waited for just these
            return self._recover(now, *lost)
        self.root_cause = None
        return self._on_failure(f"{', '.join(lost)} {why}", now)

    def _leave(self, host: str, now: float) -> list[RunAction]:
        """Continue without a host that leaves, which is no failure."""
        left = DesiredState(generation=self.generation, stage=END, reason=LEFT)
        answer = SendDesiredState(host, left)
        if not self._remove([host]):
            return [answer]
        follow = self._recover(now, host) if self.stage == IDLE else self._open_generation(now)
        return [answer, *follow]

    def _on_failure(self, what: str, now: float) -> list[RunAction]:
        """Continue without what has failed, unless the restart budget is exhausted."""
        self._members.delay_growth(now)
        exhausted = self._restart_budget.on_loss(what, now)
        return self._end(exhausted) if exhausted else self._open_generation(now)

    def _resize_if_due(self, now: float) -> list[RunAction]:
        return self._open_generation(now) if self._members.is_resize_due(now) else []

    def _open_generation(self, now: float) -> list[RunAction]:
        """Open a generation with all hosts that have capacity, by halting them."""
        # Ranks stay where they are if they can. Hosts left without any hear of it, and end theirs.
        self._restart_all |= self.policy.restart_all
        left = self._members.reassign_ranks(now, restart_all=self._restart_all)
        self.generation += 1
        self.stage = HALT
        self.resume_point = None
        self._finished.clear()
        self._links.clear()
        self._checkpoints.on_generation_opened()
        self._waiting = dict(self._members.by_host)
        opened = self._members.opened(self.generation, restart_all=self._restart_all)
        # The entry is durable before any agent hears of the generation.
        return [AppendToJournal(opened), *self._send_desired_state([*self._members.hosts, *left])]

    def _choose_resume_point(self, now: float) -> list[RunAction]:
        """All members have halted: resume from the state of one, or else from a checkpoint."""
        # With other numerics a host would compute other weights: better fewer workers than that.
        if unlike := self._members.unlike():
            return self._refuse(unlike, now)
        # No worker commits while all are halted, so the statuses are of one moment.
        self._restart_budget.on_resumed(now)
        self._addresses = self._members.addresses
        statuses = self._members.of_generation
        self.resume_point = choose_resume_point(self.members, statuses)
        self._checkpoints.on_resumed(self.generation, statuses, self.resume_point)
        self.stage = RUN
        self._restart_all = self.policy.restart_all
        self._members.on_resumed()
        self._waiting = dict(self._members.by_host)
        return self._send_desired_state(self._members.hosts)

    def _end(self, reason: str) -> list[RunAction]:
        self.stage = END
        self.reason = reason
        self.root_cause = self.root_cause if reason else None
        self._waiting.clear()
        return [
            AppendToJournal(RunEnded(reason, self.root_cause, self.result)),
            *self._send_desired_state(self._members.statuses),
        ]

    @property
    def _is_ready(self) -> bool:
        """True if all members have halted, and are enough to resume."""
        return self.stage == HALT and not self._waiting and not self._members.lacks_workers

    def _send_desired_state(self, hosts: Iterable[str]) -> list[RunAction]:
        return [
            SendDesiredState(
                host,
                DesiredState(
                    generation=self.generation,
                    stage=self.stage,
                    ranks=self._members.by_host.get(host, ()),
                    standbys=self._members.standbys_of(host),
                    caps=self._members.most_shards,
                    restart_all=self._restart_all,
                    members=self.members,
                    addresses=self._addresses if self.stage == RUN else {},
                    resume_point=self.resume_point,
                    checkpoint_result=self._checkpoints.result,
                    requested_checkpoint=self._checkpoints.requested,
                    stop=self._stop,
                    watched=self.watched,
                    probes=self._reachability.probes_by(host),
                    reason=self.reason,
                ),
            )
            for host in hosts
        ]
