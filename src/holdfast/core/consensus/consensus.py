"""The consensus state machine of one host: elects the leader of a run, and replicates its journal.

    FOLLOWER ──election timeout──▶ PRE_CANDIDATE ──would be elected──▶ CANDIDATE ──elected──▶ LEADER
       ▲                              │                                   │                     │
       └─ leader heard, newer term ───┴───────────────────────────────────┴── no majority heard ┘

This is Raft (Ongaro and Ousterhout, "In search of an understandable consensus algorithm", 2014),
with pre-vote, check-quorum, transfer of leadership and changes of one voter at a time (Ongaro's
thesis, "Consensus: bridging theory and practice", 2014, sections 9.6, 6.2, 3.10 and 4.1). The
leader's host runs the coordinator. A decision of the coordinator is an entry of the leader's log,
and takes effect once it is committed: a majority of the voters has it, so any successor does.

Terms. A term has at most one leader, since each voter has one vote in it, and gives it only to a
candidate whose log lacks nothing that it has itself. A message of an older term is answered with
the newer one, which ends a leader of the older term (fencing).

Elections. A host that hears no leader asks first whether it would be elected, and begins a term
only then (pre-vote). A voter that has heard the leader within an election timeout refuses. So no
term is ended by a host that was cut off, or is no voter any more.

Ends. A leader that no majority has answered for `quorum_s` steps down (check-quorum). That time
counts from when it sent what they answered, and a voter's election timeout from when it came. So,
if both are equal, a leader that was cut off steps down before its voters elect another, if clocks
run at one speed. Safety does not depend on that: it cannot commit without them. A transfer skips
this wait: the old leader asks for it.

Begins. A new leader cannot tell which entries of earlier terms are committed, and appends an entry
of its own term. Once that is committed, all before it are (section 5.4.2), and it may begin to
coordinate.

Voters. A configuration counts from when it is appended, and each waits until the one before is
committed, in the leader's term. A host gets the log before it votes. `next_voters` says who should.

Memory. Logs are in memory, on purpose. What Raft writes to a disk must be there when a host returns
under its name: its term, its vote and its log. Here none does: a process that is restarted has
another name, is no voter, and has an empty log. If all hosts are lost at once, or the leader with a
majority of the voters, there is no successor, and the run is resumed from its checkpoints.

Ended voters. So a voter whose process is known to have ended never votes again, nor has its log. A
leader counts a majority of the others (`HostEnded`), and goes ahead alone if all others have ended.
A candidate counts all voters, since it may lack what those that have ended had in common.

The machine reads no clock, draws nothing and performs nothing. `handle` takes an event and returns
actions, to be performed in order. All of its attributes are values that are replaced, never
changed, so that a shallow copy is a snapshot of it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.consensus.log import MAX_BATCH, ReplicatedEntry, ReplicatedLog
from holdfast.core.consensus.messages import (
    AppendEntries,
    BecameLeader,
    Committed,
    ConsensusAction,
    ConsensusEvent,
    EntriesAppended,
    HostEnded,
    HostsChanged,
    MessageReceived,
    Propose,
    RequestVote,
    SendMessage,
    SteppedDown,
    TimeoutNow,
    TransferRequested,
    Vote,
)
from holdfast.core.consensus.voters import majority_of, next_voters
from holdfast.core.events import Tick
from holdfast.core.step.seeds import seed_for

HEARTBEATS: Final = 4
"""Heartbeats of a leader within an election timeout: three of them may be lost."""


class ElectionRole(enum.Enum):
    """Part of a host in its term."""

    FOLLOWER = enum.auto()
    PRE_CANDIDATE = enum.auto()
    CANDIDATE = enum.auto()
    LEADER = enum.auto()


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """Progress of another host, as the leader knows it.

    Attributes:
        answered_at: Time at which the newest message that it has answered was sent.
        match_index: An index up to which its log is that of the leader; None if it has not said.
    """

    answered_at: float
    match_index: int | None = None


class ConsensusStateMachine:
    """The term, the log and the role of one host.

    Args:
        host: The name of this host, which no other ever has or had. From it follows how much longer
            than an election timeout it waits, so that hosts rarely become candidates together.
        voters: The first configuration: the host that begins the run, alone; none for others.
        election_s: Election timeout, seconds: a silence of the leader that is never suspected.
        quorum_s: Time without answers of a majority after which a leader steps down, seconds; by
            default the election timeout.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        host: The name of this host.
        term: The newest term that it knows.
        role: Its role in that term.
        log: Its log.
        commit_index: The index of the newest entry that it knows to be committed.
        is_ready: True if it leads, and has committed an entry of its term.
    """

    def __init__(
        self,
        host: str,
        *,
        voters: tuple[str, ...],
        election_s: float,
        quorum_s: float | None = None,
        now: float,
    ) -> None:
        self.host = host
        self.term = 0
        self.role = ElectionRole.FOLLOWER
        self.log = ReplicatedLog()
        self.commit_index = 0
        self.is_ready = False
        self._election_s = election_s
        self._quorum_s = quorum_s or election_s
        self._voted_for: str | None = None
        self._votes = frozenset[str]()
        self._heard_at = -math.inf
        self._election_at = now + self._timeout_s()
        self._heartbeat_at = math.inf
        self._progress: Mapping[str, ReplicationProgress] = {}
        self._hosts: tuple[str, ...] = ()
        self._ended = frozenset[str]()
        self._is_leaving = False
        if voters:
            self.log = self.log.append(ReplicatedEntry(0, voters=voters))
        # No other host can lead: it need not wait.
        if voters == (host,):
            self._election_at = now

    def handle(self, event: ConsensusEvent, now: float) -> list[ConsensusAction]:
        """Take note of `event`; returns what is to be done, in order."""
        # A leader that wakes up late acts on nothing before it has stepped down.
        if self.role is ElectionRole.LEADER and now >= self._quorum_until():
            return [*self._follow(self.term, now), *self._handle(event, now)]
        return self._handle(event, now)

    def next_deadline(self) -> float | None:
        """Time at which a Tick is due, if nothing else happens."""
        if self.role is ElectionRole.LEADER:
            due = min(self._heartbeat_at, self._quorum_until())
            return due if self._progress else None
        return self._election_at if self.host in self.log.voters else None

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        terms = [entry.term for entry in self.log.entries]
        assert terms == sorted(terms)
        assert self.log.last_term <= self.term
        assert self.commit_index <= self.log.last_index
        leads = self.role is ElectionRole.LEADER
        assert leads or not (self.is_ready or self._progress or self._is_leaving)
        if leads or self.role is ElectionRole.CANDIDATE:
            assert self._voted_for == self.host
        if leads:
            assert self.host in self.log.voters
            assert {*self.log.voters} <= {self.host, *self._progress}
            assert self.is_ready == (self.log.term_of(self.commit_index) == self.term)
        for progress in self._progress.values():
            assert (progress.match_index or 0) <= self.log.last_index

    def _handle(self, event: ConsensusEvent, now: float) -> list[ConsensusAction]:
        match event:
            case MessageReceived():
                return self._on_message(event, now)
            case Tick():
                return self._on_tick(now)
            case HostEnded(host):
                return self._on_ended(host, now)
        # The rest comes from the coordinator of this host, which ends with the leadership.
        if not self.is_ready:
            return []
        match event:
            case Propose(payload):
                return self._append(ReplicatedEntry(self.term, payload), now)
            case HostsChanged(hosts):
                self._hosts = hosts
            case TransferRequested():
                self._is_leaving = True
        return [*self._change_voters(now), *self._hand_over()]

    # Terms.

    def _on_message(self, event: MessageReceived, now: float) -> list[ConsensusAction]:
        sender = event.sender
        message = event.message
        if isinstance(message, RequestVote):
            return self._on_vote_requested(sender, message, now)
        # A pre-vote is granted for a term that has not begun.
        is_begun = not (isinstance(message, Vote) and message.is_granted and message.is_pre)
        if message.term < self.term:
            is_answer = isinstance(message, Vote | EntriesAppended)
            return [] if is_answer else [self._refusal_to(sender)]
        actions = self._follow(message.term, now) if is_begun and message.term > self.term else []
        match message:
            case Vote():
                actions += self._on_vote(sender, message, now)
            case AppendEntries():
                actions += self._on_entries(sender, message, now)
            case EntriesAppended():
                actions += self._on_appended(sender, message, now)
            case TimeoutNow() if self.host in self.log.voters:
                actions += self._campaign(ElectionRole.CANDIDATE, now, is_transfer=True)
        return actions

    def _refusal_to(self, host: str) -> SendMessage:
        """The newest term, and no vote."""
        return SendMessage(host, Vote(term=self.term, is_granted=False))

    def _follow(self, term: int, now: float) -> list[ConsensusAction]:
        """Become a follower, in a term that may be newer."""
        ended: list[ConsensusAction] = [SteppedDown(self.term)] if self.is_ready else []
        if self.role is ElectionRole.LEADER:
            self._election_at = now + self._timeout_s()
        if term > self.term:
            self.term = term
            self._voted_for = None
        self.role = ElectionRole.FOLLOWER
        self.is_ready = False
        self._is_leaving = False
        self._votes = frozenset()
        self._progress = {}
        self._hosts = ()
        self._ended = frozenset()
        return ended

    # Elections.

    def _on_tick(self, now: float) -> list[ConsensusAction]:
        due = self.next_deadline()
        if due is None or now < due:
            return []
        if self.role is not ElectionRole.LEADER:
            return self._campaign(ElectionRole.PRE_CANDIDATE, now)
        return [*self._replicate(now), *self._hand_over()]

    def _campaign(
        self, role: ElectionRole, now: float, *, is_transfer: bool = False
    ) -> list[ConsensusAction]:
        """Ask all voters for their votes, or whether they would give them."""
        is_pre = role is ElectionRole.PRE_CANDIDATE
        self.role = role
        self._votes = frozenset({self.host})
        if not is_pre:
            self.term += 1
            self._voted_for = self.host
        self._election_at = now + self._timeout_s()
        if self._is_elected:
            return self._on_elected(now)
        request = RequestVote(
            term=self.term + is_pre,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            is_pre=is_pre,
            is_transfer=is_transfer,
        )
        return [SendMessage(voter, request) for voter in self.log.voters if voter != self.host]

    def _on_vote_requested(
        self, sender: str, request: RequestVote, now: float
    ) -> list[ConsensusAction]:
        """Vote, unless there is a leader, a newer term, another candidate, or a newer log."""
        lacks_entries = self.log.is_newer_than(request.last_index, request.last_term)
        if request.is_pre:
            # Nothing changes here: the request is about a term that may never begin.
            if request.term <= self.term or self._hears_leader(now) or lacks_entries:
                return [self._refusal_to(sender)]
            return [SendMessage(sender, Vote(term=request.term, is_granted=True, is_pre=True))]
        # A term that is begun next to a leader is ignored, unless that leader has asked for it.
        if request.term > self.term and self._hears_leader(now) and not request.is_transfer:
            return []
        actions = self._follow(request.term, now) if request.term > self.term else []
        is_free = self._voted_for in (None, sender)
        if request.term < self.term or lacks_entries or not is_free:
            return [*actions, self._refusal_to(sender)]
        self._voted_for = sender
        self._election_at = now + self._timeout_s()
        return [*actions, SendMessage(sender, Vote(term=self.term, is_granted=True))]

    def _on_vote(self, sender: str, vote: Vote, now: float) -> list[ConsensusAction]:
        role = ElectionRole.PRE_CANDIDATE if vote.is_pre else ElectionRole.CANDIDATE
        is_for_this = self.role is role and vote.term == self.term + vote.is_pre
        if not (vote.is_granted and is_for_this):
            return []
        self._votes |= {sender}
        return self._on_elected(now) if self._is_elected else []

    def _on_elected(self, now: float) -> list[ConsensusAction]:
        """Begin the term after a pre-vote; lead it after a vote."""
        if self.role is ElectionRole.PRE_CANDIDATE:
            return self._campaign(ElectionRole.CANDIDATE, now)
        self.role = ElectionRole.LEADER
        others = (voter for voter in self.log.voters if voter != self.host)
        self._progress = dict.fromkeys(others, ReplicationProgress(now))
        return self._append(ReplicatedEntry(self.term), now)

    @property
    def _is_elected(self) -> bool:
        voters = self.log.voters
        return len(self._votes.intersection(voters)) >= majority_of(voters)

    def _hears_leader(self, now: float) -> bool:
        """True if there is a leader, as far as this host can know."""
        return self.role is ElectionRole.LEADER or now < self._heard_at + self._election_s

    def _timeout_s(self) -> float:
        """Silence after which this host wants to lead: one to two election timeouts."""
        part = seed_for(self.host, self.term) / 2**63
        return self._election_s * (1 + part)

    # The log of a follower.

    def _on_entries(self, sender: str, message: AppendEntries, now: float) -> list[ConsensusAction]:
        assert self.role is not ElectionRole.LEADER, "a term has one leader"
        self._follow(self.term, now)
        self._heard_at = now
        self._election_at = now + self._timeout_s()
        # Whatever else the log contains, what is committed in it is in the leader's log, too.
        match_index = self.commit_index
        if self.log.contains(message.previous_index, message.previous_term):
            self.log = self.log.merge(message.previous_index, message.entries)
            match_index = message.previous_index + len(message.entries)
        committed = self._commit(min(message.commit_index, match_index))
        answer = EntriesAppended(term=self.term, match_index=match_index, sent_at=message.sent_at)
        return [*committed, SendMessage(sender, answer)]

    def _commit(self, index: int) -> list[ConsensusAction]:
        """Take note that all entries up to an index are committed."""
        first = self.commit_index + 1
        self.commit_index = max(self.commit_index, index)
        entries = self.log.entries[first - 1 : self.commit_index]
        return [Committed(number, entry) for number, entry in enumerate(entries, first)]

    # The leader.

    def _append(self, entry: ReplicatedEntry, now: float) -> list[ConsensusAction]:
        self.log = self.log.append(entry)
        return [*self._replicate(now), *self._commit_replicated(now)]

    def _replicate(self, now: float) -> list[ConsensusAction]:
        """Send every host what it lacks, which is a heartbeat, too."""
        self._heartbeat_at = now + self._election_s / HEARTBEATS
        return [self._entries_for(host, now) for host in self._progress]

    def _entries_for(self, host: str, now: float) -> SendMessage:
        # A host that has not answered yet probably has what is committed.
        match_index = self._progress[host].match_index
        previous_index = self.commit_index if match_index is None else match_index
        message = AppendEntries(
            term=self.term,
            previous_index=previous_index,
            previous_term=self.log.term_of(previous_index),
            entries=self.log.entries[previous_index : previous_index + MAX_BATCH],
            commit_index=self.commit_index,
            sent_at=now,
        )
        return SendMessage(host, message)

    def _on_appended(
        self, sender: str, answer: EntriesAppended, now: float
    ) -> list[ConsensusAction]:
        before = self._progress.get(sender)
        # An answer that was overtaken says less, or is from before this host was sent entries.
        if before is None or answer.sent_at < before.answered_at:
            return []
        match_index = max(before.match_index or 0, answer.match_index)
        progress = ReplicationProgress(answer.sent_at, match_index)
        self._progress = {**self._progress, sender: progress}
        # Most answers are to heartbeats, or repeat another one.
        if match_index == before.match_index:
            return []
        actions = self._commit_replicated(now)
        if match_index < self.log.last_index and sender in self._progress:
            actions.append(self._entries_for(sender, now))
        return actions

    def _commit_replicated(self, now: float) -> list[ConsensusAction]:
        """Commit what a majority has, if it ends with an entry of this term (section 5.4.2)."""
        matching = {host: each.match_index or 0 for host, each in self._progress.items()}
        index = int(self._reached_by_majority(matching, own=self.log.last_index))
        if self.log.term_of(index) != self.term:
            return []
        actions = self._commit(index)
        if not self.is_ready:
            self.is_ready = True
            actions.append(BecameLeader(self.term))
        return [*actions, *self._change_voters(now)]

    def _on_ended(self, host: str, now: float) -> list[ConsensusAction]:
        """Count no longer on a host whose process has ended."""
        if self.role is not ElectionRole.LEADER:
            return []
        self._ended |= {host}
        return self._commit_replicated(now)

    def _quorum_until(self) -> float:
        """Time until which a majority has confirmed that this host leads."""
        answered = {host: each.answered_at for host, each in self._progress.items()}
        return self._reached_by_majority(answered, own=math.inf) + self._quorum_s

    def _reached_by_majority(self, values: Mapping[str, float], own: float) -> float:
        """The greatest value that a majority of the voters has reached that have not ended."""
        voters = [each for each in self.log.voters if each not in self._ended]
        reached = sorted(own if each == self.host else values[each] for each in voters)
        return reached[-majority_of(voters)]

    def _change_voters(self, now: float) -> list[ConsensusAction]:
        """Begin the next change of voters if it is due and the one before is committed."""
        is_changing = self.log.voters_index > self.commit_index
        if not self.is_ready or not self._hosts or is_changing:
            return []
        before = self.log.voters
        voters = next_voters(before, self.host, self._hosts, is_leaving=self._is_leaving)
        for host in set(voters).difference(before):
            # It gets the log before it votes, so that no majority waits for it.
            if host not in self._progress:
                self._progress = {**self._progress, host: ReplicationProgress(now)}
                return [self._entries_for(host, now)]
            if (self._progress[host].match_index or 0) < self.commit_index:
                return []
        # Nothing more is sent to a host that was removed, or was about to be added.
        self._progress = {host: each for host, each in self._progress.items() if host in voters}
        return (
            self._append(ReplicatedEntry(self.term, voters=voters), now) if voters != before else []
        )

    def _hand_over(self) -> list[ConsensusAction]:
        """Let the voter take over that has all entries and was heard last."""
        complete = [
            (progress.answered_at, host)
            for host, progress in self._progress.items()
            if host in self.log.voters and progress.match_index == self.log.last_index
        ]
        # A candidate would count voters that have ended, so these are removed first.
        if not (self._is_leaving and complete) or self._ended.intersection(self.log.voters):
            return []
        (_, host) = max(complete)
        return [SendMessage(host, TimeoutNow(term=self.term))]
