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

from holdfast.core.actions import Ended, Fact, Opened, Record, RunAction, Send, Sweep
from holdfast.core.checkpoint_tracker import Saving
from holdfast.core.events import (
    Disconnected,
    Lost,
    Reported,
    RunEvent,
    Settled,
    StopAsked,
    Tick,
)
from holdfast.core.heartbeats import Heartbeats
from holdfast.core.placement import place
from holdfast.core.policy import Policy
from holdfast.core.protocol import Failure, Orders, Stage, Start, Status, Verdict
from holdfast.core.restart_budget import Failures
from holdfast.core.resume_point import settle


class Run:
    """One run of a job.

    Args:
        policy: The user's.
        facts: What was recorded before the coordinator was restarted.
        checkpoint: The step of the newest checkpoint there is; 0 for none.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        generation, members, stage: As in the newest orders. At stage IDLE a restarted coordinator
            does not know yet how its members are.
        start: As in the newest orders; None where the coordinator was restarted since.
        reason: Why the run failed, once it has.
        culprit: The rank that failed last, and how.
        result: What a worker that has finished reports of the run.
        heartbeats: When each host was heard.
    """

    def __init__(
        self, policy: Policy, facts: Iterable[Fact], now: float, checkpoint: int = 0
    ) -> None:
        self.policy = policy
        self.generation, self.stage = 0, Stage.IDLE
        self.members: Mapping[int, str] = {}  # orders and facts hold it too: replaced, not changed
        self.start: Start | None = None
        self.reason = ""
        self.culprit: tuple[int, Failure] | None = None
        self.result: Mapping[str, Any] | None = None
        self._failures = Failures(policy, now)
        self._saving, self._checkpoint = Saving(policy.checkpoint_s, now), checkpoint
        self._stop = self._anew = False
        for fact in facts:
            self._replay(fact)
        self._hosts: dict[str, Status] = {}
        self._room = 0
        self._fenced: dict[str, None] = {}
        self._finished: set[int] = set()
        self.heartbeats = Heartbeats(interval_s=policy.heartbeat_s, floor_s=policy.silence_s)
        self._grow_at: float | None = None
        self._rest_until = now
        self._give_up_at: float | None = now + policy.patience_s
        self._member_hosts = _by_host(self.members)
        self._waiting = dict.fromkeys(self._member_hosts)
        for host in self._waiting:
            self.heartbeats.heard(host, now)

    def handle(self, event: RunEvent, now: float) -> list[RunAction]:
        """Take note of `event`; returns what is to be done, in order."""
        match event:
            case Reported(status):
                return self._report(status, now)
            case Disconnected(host):
                self.heartbeats.hurry(host, now + self.policy.reconnect_s)
                return []
            case Lost(host):
                self.heartbeats.forget(host)
                return self._give_up_on([host], "was lost", now)
            case Settled(verdict):
                return self._settle_checkpoint(verdict, now)
            case StopAsked():
                self._stop = True
                return self._orders_to(self._member_hosts)
            case Tick():
                return self._tick(now)

    def next_deadline(self) -> float | None:
        """When a Tick is due, if nothing else happens."""
        if self.stage == Stage.END:
            return None
        save_at = self._saving.next_deadline() if self.stage == Stage.RUN else None
        waits = (self.heartbeats.next_deadline(), self._grow_at, self._give_up_at, save_at)
        return min((wait for wait in waits if wait is not None), default=None)

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        assert all(0 <= rank < self.policy.world_size for rank in self.members)
        assert list(self.members) == sorted(self.members)
        if self.stage != Stage.IDLE:  # where it is still to be found out who is lost
            assert not self._fenced.keys() & set(self.members.values())
        assert not self._fenced.keys() & self._hosts.keys()
        assert self._waiting.keys() <= self._member_hosts.keys()
        assert self._room == sum(status.room for status in self._hosts.values())
        if self.stage == Stage.RUN:
            assert len(self.members) >= self.policy.min_workers
            assert not (self.start and self.start.donors) or (
                self.start.donors.keys() == self.members.keys()
            )

    def _replay(self, fact: Fact) -> None:
        match fact:
            case Opened(generation, members, anew):
                self.generation, self.members, self._anew = generation, members, anew
            case Ended(reason, culprit, result):
                self.stage, self.reason = Stage.END, reason
                self.culprit, self.result = culprit, result

    def _report(self, status: Status, now: float) -> list[RunAction]:
        host = status.host
        if self.stage == Stage.END:
            return self._orders_to([host])
        if host in self._fenced or status.generation > self.generation:
            reason = "this agent was given up, or belongs to another run; start it anew"
            return [Send(host, Orders(generation=self.generation, stage=Stage.END, reason=reason))]
        known = self._hosts.get(host)
        if known is not None and status.number < known.number:
            return []  # one with the same number is said again, on a new connection
        self.heartbeats.heard(host, now)
        self._hosts[host] = status
        self._room += status.room - (known.room if known else 0)
        self._stop |= status.stop  # asked of one before us
        if self.stage == Stage.IDLE and self.members:
            return self._welcome_back(now, host)
        if host in self._member_hosts:
            return self._hear_member(status, now)
        return self._consider_growth(now)

    def _hear_member(self, status: Status, now: float) -> list[RunAction]:
        if status.generation == self.generation:
            if status.failed:
                return self._bury(status, now)
            self._finished |= status.finished
            self.result = status.result or self.result
            if self._finished >= self.members.keys():
                return self._end("")
            self._saving.hear(status.verdict)
        elif self.stage == Stage.HALT and _rolls_back(status) and not self._anew:
            self._anew = True  # another failure came first
            return self._open(now)
        if self._is_behind(status):
            return self._orders_to([status.host])
        self._waiting.pop(status.host, None)
        if status.parts:
            return [*self._saving.collect(status, self.members)]
        ready = self.stage == Stage.HALT and not self._waiting and not self._too_few
        return self._go_on(now) if ready else self._consider_growth(now)

    def _is_behind(self, status: Status) -> bool:
        """Whether an agent has not done, or heard of, all that it should."""
        return (
            status.generation < self.generation
            or status.stage < self.stage
            or status.stop != self._stop
            or status.asked < self._saving.asked
            or self._saving.is_settled(status)
        )

    def _bury(self, status: Status, now: float) -> list[RunAction]:
        self.members = {
            rank: host for rank, host in self.members.items() if rank not in status.failed
        }
        counted = [
            (rank, failure) for rank, failure in status.failed.items() if not failure.follows
        ]
        self._anew |= _rolls_back(status)
        if not counted:
            return self._open(now)
        rank, failure = counted[0]  # the first to fail is to blame
        start = None if self.start is None else self.start.step
        self.culprit = (rank, failure)
        what = f"rank {rank} {failure.cause}"
        if failure.fatal:
            return self._end(what)
        repeated = self._failures.repeated(rank, failure, start, now)
        return self._end(repeated) if repeated else self._lose(what, now)

    def _welcome_back(self, now: float, *hosts: str) -> list[RunAction]:
        """After a restart: once no more is to be heard, go on if all have gone on meanwhile."""
        for host in hosts:
            self._waiting.pop(host, None)
        if self._waiting:
            return []
        known = [self._hosts[host] for host in self._member_hosts if host in self._hosts]
        if any((each.generation, each.stage) == (self.generation, Stage.RUN) for each in known):
            self._anew = self.policy.anew
        self._anew |= any(map(_rolls_back, known))
        if all(self._is_running(host) for host in self._member_hosts):
            self.stage, self._give_up_at = Stage.RUN, None
            return [action for status in known for action in self._hear_member(status, now)]
        return self._open(now)

    def _is_running(self, host: str) -> bool:
        status = self._hosts.get(host)
        return (
            status is not None
            and (status.generation, status.stage) == (self.generation, Stage.RUN)
            and not status.failed
        )

    def _tick(self, now: float) -> list[RunAction]:
        if self.stage == Stage.END:
            return []
        actions = self._give_up_on(self.heartbeats.suspects(now), "fell silent", now)
        if actions:
            return actions
        if self._give_up_at is not None and now >= self._give_up_at:
            return self._end(
                f"{len(self.members)} of {self.policy.min_workers} needed workers could be had "
                f"within {self.policy.patience_s:.0f} s"
            )
        return self._consider_growth(now) or self._consider_saving(now)

    def _consider_saving(self, now: float) -> list[RunAction]:
        """Ask for a checkpoint if it is time to; an agent that missed it is told by its report."""
        if self.stage == Stage.RUN and self._saving.ask(self.generation, now):
            return self._orders_to(self._member_hosts)
        return []

    def _give_up_on(self, lost: Sequence[str], why: str, now: float) -> list[RunAction]:
        """Fence hosts, and go on without them where they are members."""
        for host in lost:
            self._fenced[host] = None
            if host in self._hosts:
                self._room -= self._hosts.pop(host).room
        if self.stage == Stage.END or not any(host in self._member_hosts for host in lost):
            return []
        if self.stage == Stage.IDLE:
            return self._welcome_back(now, *lost)
        self.culprit = None
        return self._lose(f"{', '.join(lost)} {why}", now)

    def _lose(self, what: str, now: float) -> list[RunAction]:
        """Go on without what was lost, unless that was once too often."""
        self._rest_until = now + self.policy.rest_s
        too_many = self._failures.too_many(what, now)
        return self._end(too_many) if too_many else self._open(now)

    def _consider_growth(self, now: float) -> list[RunAction]:
        """Use new room: at once if that makes the world full, else when more had time to come."""
        size = min(self._room, self.policy.world_size)
        if size <= len(self.members) or size < self.policy.min_workers:
            self._grow_at = None
            return []
        if self._grow_at is None:
            wait_s = 0.0 if size == self.policy.world_size else self.policy.gather_s
            rest_until = now if self._too_few else self._rest_until  # then nobody trains anyway
            self._grow_at = max(now + wait_s, rest_until)
        return self._open(now) if now >= self._grow_at else []

    def _open(self, now: float) -> list[RunAction]:
        """Begin a generation with all for whom there is room, by halting them."""
        before = self._member_hosts
        room = {host: status.room for host, status in self._hosts.items()}
        present = {rank: host for rank, host in self.members.items() if host in room}
        if now < self._rest_until and len(present) >= self.policy.min_workers:
            room = dict(Counter(present.values()))
        self.members = place(self.policy.world_size, room, present)
        self._member_hosts = _by_host(self.members)
        self.generation += 1
        self.stage, self.start, self._grow_at = Stage.HALT, None, None
        self._finished.clear()
        self._saving.begin_anew()
        self._waiting = dict.fromkeys(self._member_hosts)
        if not self._too_few:
            self._give_up_at = None
        elif self._give_up_at is None:
            self._give_up_at = now + self.policy.patience_s
        left = [host for host in before if host in room and host not in self._member_hosts]
        self._anew |= self.policy.anew
        record = Record(Opened(self.generation, self.members, self._anew))
        return [record, *self._orders_to([*self._member_hosts, *left])]

    def _go_on(self, now: float) -> list[RunAction]:
        """All stand still: have them settle the step in hand and go on."""
        self._failures.went_on(now)
        reports = [self._hosts[host] for host in self._member_hosts]
        self.start = settle(self.members, reports, self._checkpoint)
        self.stage, self._anew = Stage.RUN, self.policy.anew
        self._waiting = dict.fromkeys(self._member_hosts)
        return [Sweep(), *self._orders_to(self._member_hosts)]

    def _settle_checkpoint(self, verdict: Verdict, now: float) -> list[RunAction]:
        self._saving.settle(verdict, now)
        self._checkpoint = self._checkpoint if verdict.error else verdict.step
        return self._orders_to(self._member_hosts)

    def _end(self, reason: str) -> list[RunAction]:
        self.stage, self.reason = Stage.END, reason
        self.culprit = self.culprit if reason else None
        self._waiting.clear()
        return [Record(Ended(reason, self.culprit, self.result)), *self._orders_to(self._hosts)]

    @property
    def _too_few(self) -> bool:
        return len(self.members) < self.policy.min_workers

    def _orders_to(self, hosts: Iterable[str]) -> list[RunAction]:
        return [
            Send(
                host,
                Orders(
                    generation=self.generation,
                    stage=self.stage,
                    ranks=self._member_hosts.get(host, ()),
                    anew=self._anew,
                    members=self.members,
                    start=self.start,
                    verdict=self._saving.verdict,
                    save=self._saving.asked,
                    stop=self._stop,
                    reason=self.reason,
                ),
            )
            for host in hosts
        ]


def _rolls_back(status: Status) -> bool:
    """Whether a worker has failed in a way that leaves no worker's state to be trusted."""
    return any(failure.rollback for failure in status.failed.values())


def _by_host(members: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """The ranks of each host, in rank order."""
    ranks: dict[str, list[int]] = {}
    for rank, host in members.items():
        ranks.setdefault(host, []).append(rank)
    return {host: tuple(own) for host, own in ranks.items()}
