"""Consensus by small examples: elections, commits, hosts that are cut off, voters and transfers."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from holdfast.core.consensus.consensus import ConsensusStateMachine, ElectionRole
from holdfast.core.consensus.log import MAX_BATCH, ReplicatedEntry, ReplicatedLog
from holdfast.core.consensus.messages import (
    AppendEntries,
    BecameLeader,
    Committed,
    ConsensusEvent,
    ConsensusMessage,
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
from holdfast.core.consensus.voters import next_voters
from holdfast.core.events import Tick

ELECTION_S = 1.0
ALL = ("a", "b", "c")


class Hosts:
    """Some hosts, whose messages arrive in the order in which they were sent, at once.

    Attributes:
        apart: Hosts whose messages are lost, and which get none.
        did: What each host was to do apart from sending messages, in order.
        now: The time of all hosts.
    """

    def __init__(self, *names: str, voters: tuple[str, ...] | None = None) -> None:
        self.machines = {
            name: ConsensusStateMachine(
                name, voters=voters or names, election_s=ELECTION_S, now=0.0
            )
            for name in names
        }
        self.apart = set[str]()
        self.did: dict[str, list[object]] = {name: [] for name in names}
        self.now = 0.0

    def add(self, *names: str) -> None:
        """Hosts join, with empty logs."""
        for name in names:
            self.machines[name] = ConsensusStateMachine(
                name, voters=(), election_s=ELECTION_S, now=self.now
            )
            self.did[name] = []

    def tell(self, name: str, event: ConsensusEvent) -> None:
        """An event, and all messages that follow from it."""
        queue = deque([(name, event)])
        while queue:
            at, event = queue.popleft()
            machine = self.machines[at]
            for action in machine.handle(event, self.now):
                if not isinstance(action, SendMessage):
                    self.did[at].append(action)
                elif not {at, action.to} & self.apart:
                    queue.append((action.to, MessageReceived(at, action.message)))
            machine.check_invariants()

    def tick(self, name: str) -> None:
        """Time passes until a host has something to do."""
        self.now = max(self.now, self.due(name))
        self.tell(name, Tick())

    def let_pass(self, seconds: float) -> None:
        """Time passes for all hosts."""
        limit = self.now + seconds
        while self.due(self.first_due()) <= limit:
            self.tick(self.first_due())
        self.now = limit

    def elect(self, name: str) -> ConsensusStateMachine:
        """A host becomes the leader, once the others have not heard one for long enough."""
        self.now += 2 * ELECTION_S
        self.tell(name, Tick())
        assert self.machines[name].is_ready
        return self.machines[name]

    def leaders(self) -> list[str]:
        """The hosts that lead."""
        return [name for name, machine in self.machines.items() if machine.is_ready]

    def payloads(self, name: str) -> list[str]:
        """The decisions that a host knows to be committed."""
        committed = [each for each in self.did[name] if isinstance(each, Committed)]
        assert [each.index for each in committed] == [*range(1, len(committed) + 1)]
        return [each.entry.payload for each in committed if each.entry.payload is not None]

    def first_due(self) -> str:
        """The host that has something to do next."""
        return min(self.machines, key=self.due)

    def due(self, name: str) -> float:
        """Time at which a host has something to do if it hears nothing."""
        due = self.machines[name].next_deadline()
        return math.inf if due is None else due


def receive(
    machine: ConsensusStateMachine, message: ConsensusMessage, now: float = 0.0, sender: str = "b"
) -> list[object]:
    return [*machine.handle(MessageReceived(sender, message), now)]


def follower(*terms: int) -> ConsensusStateMachine:
    """Host `a` of three, with entries of these terms."""
    machine = Hosts(*ALL).machines["a"]
    entries = tuple(ReplicatedEntry(term, f"{term}.{n}") for n, term in enumerate(terms))
    if terms:
        append = AppendEntries(
            term=terms[-1], previous_index=1, previous_term=0, entries=entries, commit_index=1,
            sent_at=0.0,
        )  # fmt: skip
        receive(machine, append)
    return machine


# Elections.


def test_the_first_host_leads_at_once_and_decides_alone() -> None:
    hosts = Hosts("a")
    assert hosts.machines["a"].next_deadline() == 0.0
    hosts.tick("a")
    hosts.tell("a", Propose("x"))
    assert hosts.did["a"] == [
        Committed(1, ReplicatedEntry(0, voters=("a",))),
        Committed(2, ReplicatedEntry(1)),
        BecameLeader(1),
        Committed(3, ReplicatedEntry(1, "x")),
    ]
    assert hosts.machines["a"].next_deadline() is None, "there is no other host to wait for"


def test_of_three_hosts_one_is_elected() -> None:
    hosts = Hosts(*ALL)
    hosts.let_pass(3 * ELECTION_S)
    assert len(hosts.leaders()) == 1
    assert {machine.term for machine in hosts.machines.values()} == {1}


def test_a_candidate_asks_first_whether_it_would_be_elected() -> None:
    machine = Hosts(*ALL).machines["a"]
    asked = RequestVote(term=1, last_index=1, last_term=0, is_pre=True)
    assert machine.handle(Tick(), 2.0) == [SendMessage("b", asked), SendMessage("c", asked)]
    assert (machine.role, machine.term) == (ElectionRole.PRE_CANDIDATE, 0)
    wanted = RequestVote(term=1, last_index=1, last_term=0)
    answer = Vote(term=1, is_granted=True, is_pre=True)
    assert receive(machine, answer) == [SendMessage("b", wanted), SendMessage("c", wanted)]
    assert (machine.role, machine.term) == (ElectionRole.CANDIDATE, 1)


def test_a_host_has_one_vote_in_a_term() -> None:
    machine = follower()
    wanted = RequestVote(term=1, last_index=1, last_term=0)
    granted = SendMessage("b", Vote(term=1, is_granted=True))
    assert receive(machine, wanted) == [granted]
    assert receive(machine, wanted, sender="c") == [
        SendMessage("c", Vote(term=1, is_granted=False))
    ]
    assert receive(machine, wanted) == [granted], "the answer may have been lost"


@pytest.mark.parametrize(
    ("last_index", "last_term", "is_granted"),
    [(3, 2, True), (4, 2, True), (2, 2, False), (9, 1, False), (2, 3, True)],
)
def test_a_vote_goes_to_a_log_that_lacks_nothing(
    last_index: int, last_term: int, is_granted: bool
) -> None:
    for is_pre in (True, False):
        machine = follower(1, 2)
        wanted = RequestVote(term=4, last_index=last_index, last_term=last_term, is_pre=is_pre)
        (answer,) = receive(machine, wanted, now=ELECTION_S)
        assert isinstance(answer, SendMessage)
        assert isinstance(answer.message, Vote)
        assert answer.message.is_granted == is_granted


def test_the_answer_to_a_pre_vote_is_no_vote() -> None:
    machine = Hosts("a", "b", "c", "d", "e").machines["a"]
    machine.handle(Tick(), 2.0)
    for sender in ("b", "c"):
        receive(machine, Vote(term=1, is_granted=True, is_pre=True), sender=sender)
    assert machine.role is ElectionRole.CANDIDATE
    for sender in ("d", "e"):
        receive(machine, Vote(term=1, is_granted=True, is_pre=True), sender=sender)
    receive(machine, Vote(term=1, is_granted=True), sender="b")
    receive(machine, Vote(term=1, is_granted=True), sender="b")
    assert machine.role is ElectionRole.CANDIDATE
    receive(machine, Vote(term=1, is_granted=True), sender="c")
    assert machine.role is ElectionRole.LEADER


def test_a_host_that_was_cut_off_ends_no_term_when_it_is_back() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.apart = {"c"}
    hosts.let_pass(10 * ELECTION_S)
    assert hosts.machines["c"].role is ElectionRole.PRE_CANDIDATE
    while (due := hosts.first_due()) != "c":
        hosts.tick(due)
    hosts.apart = set()
    hosts.tick("c")
    assert hosts.machines["c"].role is ElectionRole.PRE_CANDIDATE, "it has asked, and was refused"
    hosts.let_pass(5 * ELECTION_S)
    assert hosts.leaders() == ["a"]
    assert {machine.term for machine in hosts.machines.values()} == {1}


def test_while_a_leader_is_heard_no_vote_is_granted() -> None:
    machine = follower(1)
    wanted = RequestVote(term=9, last_index=9, last_term=9)
    assert receive(machine, wanted, now=0.99 * ELECTION_S) == []
    assert machine.term == 1
    assert receive(machine, wanted, now=ELECTION_S) != []
    assert machine.term == 9


def test_a_leader_that_wakes_up_late_acts_on_nothing_before_it_has_stepped_down() -> None:
    hosts = Hosts(*ALL)
    leader = hosts.elect("a")
    late = hosts.now + ELECTION_S
    assert leader.handle(Propose("x"), late) == [SteppedDown(1)]
    assert leader.log.last_index == 2


# Entries.


def test_a_proposal_is_committed_by_all_in_order() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    for payload in ("x", "y", "z"):
        hosts.tell("a", Propose(payload))
    assert hosts.payloads("a") == ["x", "y", "z"]
    hosts.tick("a")
    assert hosts.payloads("b") == hosts.payloads("c") == ["x", "y", "z"]


def test_a_leader_begins_after_it_has_committed_what_it_has_inherited() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.tell("a", Propose("x"))
    hosts.apart = {"a"}
    hosts.elect("b")
    begun = hosts.did["b"].index(BecameLeader(2))
    assert Committed(3, ReplicatedEntry(1, "x")) in hosts.did["b"][:begun]


def test_a_majority_commits_without_the_others_and_these_catch_up() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.apart = {"c"}
    payloads = [str(n) for n in range(3 * MAX_BATCH)]
    for payload in payloads:
        hosts.tell("a", Propose(payload))
    assert hosts.payloads("a") == payloads
    assert hosts.payloads("c") == []
    hosts.apart = set()
    hosts.tick("a")
    hosts.tick("a")
    assert hosts.payloads("c") == payloads


def test_a_message_has_a_bounded_number_of_entries() -> None:
    hosts = Hosts(*ALL)
    leader = hosts.elect("a")
    hosts.apart = {"b", "c"}
    for n in range(3 * MAX_BATCH):
        hosts.tell("a", Propose(str(n)))
    hosts.now = hosts.due("a")
    for action in leader.handle(Tick(), hosts.now):
        assert isinstance(action, SendMessage)
        assert isinstance(action.message, AppendEntries)
        assert len(action.message.entries) == MAX_BATCH


def test_only_a_leader_proposes() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    for event in (Propose("x"), HostsChanged(("b",)), TransferRequested()):
        before = copy.copy(vars(hosts.machines["b"]))
        assert hosts.machines["b"].handle(event, hosts.now) == []
        assert vars(hosts.machines["b"]) == before


def test_a_leader_without_a_majority_steps_down_and_nothing_that_it_proposed_is_committed() -> None:
    hosts = Hosts(*ALL)
    leader = hosts.elect("a")
    hosts.tell("a", Propose("before"))
    hosts.apart = {"a"}
    hosts.tell("a", Propose("cut off"))
    began = hosts.now
    while leader.role is ElectionRole.LEADER:
        assert hosts.leaders() == ["a"], "there is no other leader yet"
        hosts.tick(hosts.first_due())
    assert hosts.now == began + ELECTION_S
    assert hosts.did["a"][-1] == SteppedDown(1)
    hosts.tell("a", Propose("too late"))
    hosts.let_pass(3 * ELECTION_S)
    (successor,) = hosts.leaders()
    hosts.tell(successor, Propose("after"))
    hosts.apart = set()
    hosts.let_pass(3 * ELECTION_S)
    for name in ALL:
        assert hosts.payloads(name) == ["before", "after"]


def test_an_entry_that_reached_one_voter_is_kept_if_that_one_is_elected() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    sent = hosts.machines["a"].handle(Propose("kept"), hosts.now)
    (to_b,) = [each for each in sent if isinstance(each, SendMessage) and each.to == "b"]
    hosts.apart = {"a"}
    hosts.tell("b", MessageReceived("a", to_b.message))
    hosts.now += 2 * ELECTION_S
    hosts.tell("c", Tick())
    assert hosts.leaders() == ["a"], "it lacks an entry, so it is not elected"
    hosts.elect("b")
    assert hosts.payloads("b") == ["kept"]


def test_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    """Figure 8 of the paper."""
    machine = follower(1)
    receive(machine, RequestVote(term=2, last_index=9, last_term=1), now=ELECTION_S)
    machine.handle(Tick(), 9.0)
    receive(machine, Vote(term=3, is_granted=True, is_pre=True), now=9.0)
    receive(machine, Vote(term=3, is_granted=True), now=9.0)
    assert machine.role is ElectionRole.LEADER
    assert [entry.term for entry in machine.log.entries] == [0, 1, 3]
    answer = EntriesAppended(term=3, match_index=2, sent_at=9.0)
    assert not any(isinstance(each, Committed) for each in receive(machine, answer, now=9.0))
    answer = EntriesAppended(term=3, match_index=3, sent_at=9.0)
    committed = [each for each in receive(machine, answer, now=9.0) if isinstance(each, Committed)]
    assert [each.index for each in committed] == [2, 3]


def append(term: int, previous: tuple[int, int], *terms: int, commit: int = 0) -> AppendEntries:
    """A message of a leader, with entries of these terms."""
    (index, of_term) = previous
    entries = tuple(ReplicatedEntry(each, f"{each}.{n}") for n, each in enumerate(terms, index - 1))
    return AppendEntries(
        term=term, previous_index=index, previous_term=of_term, entries=entries,
        commit_index=commit, sent_at=7.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("message", "terms", "match_index"),
    [
        (append(2, (3, 1), 2), [1, 1, 2], 4),
        (append(2, (2, 1), 2), [1, 2], 3),
        (append(2, (1, 0), 1), [1, 1], 2),
        (append(2, (3, 2), 2), [1, 1], 1),
        (append(2, (4, 2), 2), [1, 1], 1),
        (append(2, (3, 1)), [1, 1], 3),
    ],
    ids=["next", "other", "repeated", "mismatch", "gap", "heartbeat"],
)
def test_entries_replace_those_that_differ_and_no_others(
    message: AppendEntries, terms: list[int], match_index: int
) -> None:
    machine = follower(1, 1)
    (answer,) = receive(machine, message)
    assert answer == SendMessage("b", EntriesAppended(term=2, match_index=match_index, sent_at=7.0))
    assert [entry.term for entry in machine.log.entries[1:]] == terms


def test_a_follower_commits_no_further_than_its_log_is_that_of_the_leader() -> None:
    machine = follower(1, 1)
    receive(machine, append(2, (2, 1), commit=9))
    assert machine.commit_index == 2


@pytest.mark.parametrize(
    "message",
    [append(1, (1, 0), 1), TimeoutNow(term=1), RequestVote(term=1, last_index=9, last_term=9)],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_an_older_term_is_answered_with_the_newer_term(
    message: ConsensusMessage,
) -> None:
    machine = follower(2)
    before = machine.log
    assert receive(machine, message) == [SendMessage("b", Vote(term=2, is_granted=False))]
    assert machine.log == before


@pytest.mark.parametrize(
    "message",
    [
        Vote(term=1, is_granted=True),
        Vote(term=1, is_granted=False),
        EntriesAppended(term=1, match_index=9, sent_at=0.0),
    ],
    ids=["vote", "refusal", "appended"],
)
def test_an_answer_of_an_older_term_is_dropped(message: ConsensusMessage) -> None:
    assert receive(follower(2), message) == []


def test_a_leader_that_hears_of_a_newer_term_steps_down() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.tell("a", MessageReceived("b", Vote(term=5, is_granted=False)))
    assert hosts.did["a"][-1] == SteppedDown(1)
    assert hosts.machines["a"].term == 5


# Voters.


@pytest.mark.parametrize(
    ("voters", "hosts", "expected"),
    [
        ("a", "a", "a"),
        ("a", "ab", "a"),
        ("a", "abc", "ab"),
        ("ab", "abc", "abc"),
        ("abc", "abcd", "abc"),
        ("abc", "abcde", "abcd"),
        ("abcd", "abcde", "abcde"),
        ("abcde", "abcdefg", "abcde"),
        ("abc", "abd", "ab"),
        ("ab", "abd", "abd"),
        ("abc", "ab", "ab"),
        ("ab", "ab", "a"),
        ("abcde", "acde", "acde"),
        ("acde", "acde", "acd"),
        ("abc", "bc", "abc"),
        ("abc", "", "ac"),
    ],
)
def test_one_voter_changes_at_a_time(voters: str, hosts: str, expected: str) -> None:
    assert next_voters(tuple(voters), "a", tuple(hosts)) == tuple(expected)


@pytest.mark.parametrize(
    ("hosts", "count"), [("a", 1), ("ab", 1), ("abc", 3), ("abcd", 3), ("abcde", 5), ("abcdef", 5)]
)
def test_so_many_hosts_vote(hosts: str, count: int) -> None:
    run = started(hosts)
    leader = run.machines["a"]
    assert leader.log.voters == tuple(hosts[:count])
    run.tell("a", Propose("x"))
    run.let_pass(ELECTION_S)
    assert all(run.payloads(name) == ["x"] for name in leader.log.voters)
    assert not any(run.did[name] for name in hosts[count:])


def started(names: Iterable[str]) -> Hosts:
    """A run of which host `a` is the first, and the others have joined."""
    (first, *others) = names
    hosts = Hosts(first)
    hosts.tick(first)
    hosts.add(*others)
    hosts.tell(first, HostsChanged((first, *others)))
    return hosts


def test_a_lost_voter_is_replaced_and_then_another_may_be_lost() -> None:
    hosts = started("abcd")
    hosts.apart = {"b"}
    hosts.tell("a", HostsChanged(("a", "c", "d")))
    assert hosts.machines["a"].log.voters == ("a", "c", "d")
    hosts.apart = {"b", "c"}
    hosts.tell("a", Propose("x"))
    assert hosts.payloads("a") == ["x"]


def test_the_loss_of_one_of_two_hosts_costs_nothing() -> None:
    hosts = started("ab")
    hosts.apart = {"b"}
    hosts.let_pass(5 * ELECTION_S)
    hosts.tell("a", Propose("x"))
    assert hosts.payloads("a") == ["x"]
    assert hosts.leaders() == ["a"]


def test_with_two_hosts_left_of_three_the_leader_votes_alone() -> None:
    hosts = started("abc")
    hosts.apart = {"c"}
    hosts.tell("a", HostsChanged(("a", "b")))
    assert hosts.machines["a"].log.voters == ("a",)
    hosts.apart = {"b", "c"}
    hosts.let_pass(5 * ELECTION_S)
    assert hosts.leaders() == ["a"]


def test_a_host_that_does_not_answer_becomes_no_voter() -> None:
    hosts = Hosts("a")
    hosts.tick("a")
    hosts.add("b", "c")
    hosts.apart = {"b"}
    hosts.tell("a", HostsChanged(ALL))
    hosts.let_pass(9 * ELECTION_S)
    hosts.tell("a", Propose("x"))
    assert (hosts.machines["a"].log.voters, hosts.payloads("a")) == (("a",), ["x"])
    hosts.apart = set()
    hosts.let_pass(ELECTION_S)
    assert hosts.machines["a"].log.voters == ALL


def test_an_answer_from_before_a_host_was_removed_makes_it_no_voter_again() -> None:
    hosts = started("abc")
    leader = hosts.machines["a"]
    hosts.tell("a", HostsChanged(("a", "b")))
    late = EntriesAppended(term=1, match_index=leader.log.last_index, sent_at=hosts.now)
    hosts.apart = {"b", "c"}
    hosts.now += ELECTION_S
    hosts.tell("a", HostsChanged(ALL))
    hosts.tell("a", MessageReceived("b", late))
    assert leader.log.voters == ("a",)
    hosts.tell("a", MessageReceived("b", replace(late, sent_at=hosts.now)))
    assert leader.log.voters == ("a", "b")


def test_a_host_that_votes_no_more_disturbs_no_leader() -> None:
    hosts = started("abc")
    hosts.tell("a", HostsChanged(("a", "b")))
    hosts.let_pass(20 * ELECTION_S)
    assert hosts.leaders() == ["a"]
    assert hosts.machines["a"].term == 1


def test_a_change_of_voters_waits_for_the_one_before() -> None:
    hosts = started("abcdef")
    hosts.apart = set("bcde")
    hosts.tell("a", HostsChanged(("a", "f")))
    assert hosts.machines["a"].log.voters == tuple("acde"), "there is no majority for another"


def test_a_configuration_that_is_replaced_counts_no_more() -> None:
    log = ReplicatedLog().append(ReplicatedEntry(0, voters=ALL)).append(ReplicatedEntry(1))
    changed = log.append(ReplicatedEntry(1, voters=("a", "b")))
    assert (changed.voters, changed.voters_index) == (("a", "b"), 3)
    assert changed.merge(2, [ReplicatedEntry(2)]) == log.append(ReplicatedEntry(2))


def test_a_successor_knows_no_hosts_until_its_coordinator_does() -> None:
    hosts = started("abcd")
    hosts.apart = {"a"}
    successor = hosts.elect("b")
    hosts.let_pass(ELECTION_S)
    assert successor.log.voters == ALL
    hosts.tell("b", HostsChanged(("b", "c", "d")))
    assert successor.log.voters == ("b", "c", "d")


# Voters that have ended.


def test_a_leader_goes_ahead_alone_once_all_other_voters_have_ended() -> None:
    hosts = Hosts(*ALL)
    leader = hosts.elect("a")
    hosts.apart = {"b", "c"}
    hosts.tell("a", Propose("x"))
    hosts.tell("a", HostEnded("b"))
    assert hosts.payloads("a") == [], "c may still have a leader of its own"
    hosts.tell("a", HostEnded("c"))
    assert hosts.payloads("a") == ["x"]
    hosts.let_pass(5 * ELECTION_S)
    assert hosts.leaders() == ["a"]
    hosts.tell("a", HostsChanged(("a", "d")))
    hosts.tell("a", HostsChanged(("a", "d")))
    assert leader.log.voters == ("a",)


def test_a_leader_hands_over_once_those_that_have_ended_vote_no_more() -> None:
    hosts = Hosts(*ALL)
    leader = hosts.elect("a")
    hosts.apart = {"c"}
    hosts.tell("a", HostEnded("c"))
    hosts.tell("a", TransferRequested())
    assert hosts.leaders() == ["a"]
    hosts.tell("a", HostsChanged(("a", "b")))
    hosts.let_pass(ELECTION_S)
    assert hosts.leaders() == ["b"]
    assert "c" not in leader.log.voters


def test_a_candidate_needs_the_votes_of_those_that_have_ended() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.apart = {"a", "c"}
    hosts.tell("b", HostEnded("a"))
    hosts.tell("b", HostEnded("c"))
    hosts.let_pass(5 * ELECTION_S)
    assert "b" not in hosts.leaders()


def test_what_has_ended_is_forgotten_with_the_term() -> None:
    hosts = Hosts(*ALL)
    leader = hosts.elect("a")
    hosts.tell("a", HostEnded("b"))
    hosts.tell("a", HostEnded("c"))
    receive(leader, Vote(term=7, is_granted=False), sender="c")
    assert leader.role is ElectionRole.FOLLOWER
    hosts.apart = {"a"}
    hosts.let_pass(5 * ELECTION_S)
    assert "a" not in hosts.leaders()


def test_a_leader_may_wait_longer_for_its_majority_than_its_voters_for_it() -> None:
    patient = ConsensusStateMachine(
        "a", voters=ALL, election_s=ELECTION_S, quorum_s=9 * ELECTION_S, now=0.0
    )
    patient.handle(Tick(), 2 * ELECTION_S)
    receive(patient, Vote(term=1, is_granted=True, is_pre=True), now=2 * ELECTION_S)
    receive(patient, Vote(term=1, is_granted=True), now=2 * ELECTION_S)
    assert patient.role is ElectionRole.LEADER
    patient.handle(Tick(), 10 * ELECTION_S)
    assert patient.role is ElectionRole.LEADER
    patient.handle(Tick(), 12 * ELECTION_S)
    assert patient.role is ElectionRole.FOLLOWER


# Transfer.


def test_a_leader_that_leaves_hands_over_to_a_voter_with_all_entries() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.apart = {"b"}
    hosts.tell("a", Propose("x"))
    hosts.apart = set()
    hosts.tell("a", TransferRequested())
    assert hosts.leaders() == ["c"]
    assert hosts.did["a"][-1] == SteppedDown(1)
    assert hosts.payloads("c") == ["x"]
    hosts.apart = {"a"}
    hosts.tell("c", HostsChanged(("b", "c")))
    assert hosts.machines["c"].log.voters == ("c",)


def test_a_leader_that_votes_alone_hands_over_to_the_other_host() -> None:
    hosts = started("ab")
    hosts.tell("a", Propose("x"))
    hosts.tell("a", TransferRequested())
    hosts.let_pass(ELECTION_S)
    assert hosts.leaders() == ["b"]
    assert hosts.payloads("b") == ["x"]
    hosts.tell("b", HostsChanged(("b",)))
    hosts.apart = {"a"}
    hosts.let_pass(5 * ELECTION_S)
    assert hosts.leaders() == ["b"]


def test_a_transfer_is_repeated_until_a_voter_has_taken_over() -> None:
    hosts = Hosts(*ALL)
    hosts.elect("a")
    hosts.apart = {"b", "c"}
    hosts.tell("a", TransferRequested())
    hosts.apart = {"c"}
    hosts.tick("a")
    assert hosts.leaders() == ["a"], "it has asked c again"
    hosts.tick("a")
    assert hosts.leaders() == ["b"], "it was heard last"


def test_a_host_that_does_not_vote_takes_nothing_over() -> None:
    hosts = started("ab")
    assert receive(hosts.machines["b"], TimeoutNow(term=1), sender="a") == []


# Messages.


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(term=1, last_index=2, last_term=3, is_transfer=True),
        Vote(term=1, is_granted=True, is_pre=True),
        append(2, (3, 1), 2),
        AppendEntries(
            term=1, previous_index=0, previous_term=0, entries=(ReplicatedEntry(1, voters=ALL),),
            commit_index=0, sent_at=0.5,
        ),
        EntriesAppended(term=1, match_index=2, sent_at=0.25),
        TimeoutNow(term=1),
    ],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
def test_a_message_is_encoded_as_other_messages_are(message: ConsensusMessage) -> None:
    adapter = TypeAdapter(type(message))
    assert adapter.validate_json(adapter.dump_json(message)) == message


def test_hosts_wait_for_different_times() -> None:
    timeouts = {
        ConsensusStateMachine(
            name, voters=(name, "other"), election_s=ELECTION_S, now=5.0
        ).next_deadline()
        for name in (f"host-{n}" for n in range(20))
    }
    assert len(timeouts) == 20
    assert all(each is not None and 6.0 <= each < 7.0 for each in timeouts)
