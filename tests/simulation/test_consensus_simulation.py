"""Consensus of hosts that die, join, pause and are cut off, on a network that loses and reorders.

What must never happen is asserted after every event: two leaders of a term, or at one time; logs
that do not match; a committed entry that changes, or that a leader lacks; a proposal of a host that
does not lead. When the faults are over, a leader must emerge, and lost voters be replaced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.consensus.consensus import ConsensusStateMachine, ElectionRole
from holdfast.core.consensus.log import ReplicatedEntry, ReplicatedLog
from holdfast.core.consensus.messages import (
    BecameLeader,
    Committed,
    ConsensusAction,
    ConsensusEvent,
    ConsensusMessage,
    HostEnded,
    HostsChanged,
    MessageReceived,
    Propose,
    RequestVote,
    SendMessage,
    SteppedDown,
    TransferRequested,
)
from holdfast.core.consensus.voters import majority_of, next_voters
from holdfast.core.events import Tick
from holdfast_bench.simulation.cuts import Cuts
from holdfast_bench.simulation.network import SimulatedLink
from holdfast_bench.simulation.timeline import Timeline

ELECTION_S = 1.0
FAULTS_S = 6.0
CALM_S = 5.0
"""Time without faults after which a leader must have emerged, and lost voters been replaced."""
MOST_HOSTS = 7


class SimulatedHosts:
    """Hosts of one run, each with the machine of a consensus.

    A host that is killed never returns: one with another name and an empty log joins in its place.
    """

    def __init__(self, seed: int, hosts: int) -> None:
        self.timeline = Timeline(seed)
        self.chance = self.timeline.chance
        self.quorum_s = self.chance.choice([ELECTION_S, ELECTION_S, 100 * ELECTION_S])
        self.link = SimulatedLink(
            self.chance.choice([0.01, 0.1]),
            loss=self.chance.choice([0, 0.1, 0.3]),
            late=self.chance.choice([0, 0.1]),
        )
        self.cuts = Cuts()
        self.machines: dict[str, ConsensusStateMachine] = {}
        self.leading: dict[str, int] = {}
        self.committed: list[ReplicatedEntry] = []
        self.record = Record()
        self.num_proposals = 0
        self._known_up_to: dict[str, int] = {}
        self._numbers = itertools.count(100 * seed)
        self._transferred = set[int]()
        self._muted = set[tuple[str, str]]()
        self._paused_until: dict[str, float] = {}
        for _ in range(hosts):
            self.join()

    def join(self) -> None:
        """A host joins."""
        if len(self.machines) == MOST_HOSTS:
            return
        name = f"host-{next(self._numbers)}"
        machine = ConsensusStateMachine(
            name,
            voters=() if self.machines else (name,),
            election_s=ELECTION_S,
            quorum_s=self.quorum_s,
            now=self.timeline.now,
        )
        self.machines[name] = machine
        self._known_up_to[name] = 0
        self.record.check(ReplicatedLog(), machine.log)
        self._wake(name)
        self._tell_hosts()

    def kill(self) -> None:
        """Kill a host, unless the run would lose its majority; another one joins in its place."""
        name = self._any()
        if self.can_lose(name):
            self._kill(name)
            self._later(self.join)

    def kill_others(self) -> None:
        """Kill all hosts but the newest leader, if it waits until it knows that they have ended."""
        if self.quorum_s == ELECTION_S:
            return
        newest = max(machine.term for machine in self.machines.values())
        for leader in [name for name, term in self.leading.items() if term == newest]:
            for name in [name for name in self.machines if name != leader]:
                self._kill(name)
                self._later(self.join)

    def _kill(self, name: str) -> None:
        self.timeline.note(f"{name} is killed")
        del self.machines[name]
        self.leading.pop(name, None)
        self._later(self._tell_hosts)
        for other in self.machines:
            self._later(self._tell, other, HostEnded(name))

    def can_lose(self, name: str) -> bool:
        """True if there is a majority without a host, by all configurations that may hold."""
        left = self.machines.keys() - {name}
        return all(len(left & {*voters}) >= majority_of(voters) for voters in self.configurations())

    def configurations(self) -> Iterator[tuple[str, ...]]:
        """The newest configuration that is committed, those that may be, and those that follow."""
        newest = max((i for i, entry in enumerate(self.committed) if entry.voters), default=0)
        for machine in self.machines.values():
            yield from (entry.voters for entry in machine.log.entries[newest:] if entry.voters)
            yield from [(machine.host, *machine._progress)] if machine._progress else []

    def propose(self) -> None:
        """Each host is asked to record something, also those that do not lead."""
        self.num_proposals += 1
        for name in list(self.machines):
            self._tell(name, Propose(f"{name} {self.num_proposals}"))

    def leave(self) -> None:
        """A leader leaves."""
        for name in list(self.leading)[:1]:
            self.timeline.note(f"{name} leaves")
            self._tell(name, TransferRequested())

    def cut(self) -> None:
        """Some hosts are cut off from the others for a while."""
        names = list(self.machines)
        hit = self.chance.sample(names, self.chance.randrange(len(names)))
        self.timeline.note(f"{', '.join(hit)} cut off")
        self._later(self.cuts.heal, self.cuts.around(hit))

    def mute(self) -> None:
        """Messages from a host to another get lost for a while; others, and those back, do not."""
        pair = (self._any(), self._any())
        self.timeline.note(f"from {pair[0]} to {pair[1]} messages get lost")
        self._muted.add(pair)
        self._later(self._muted.discard, pair)

    def pause(self) -> None:
        """A host does nothing for a while; then it handles all that it has missed."""
        name = self._any()
        self.timeline.note(f"{name} pauses")
        self._paused_until[name] = self.timeline.now + self.chance.uniform(0.1, 3 * ELECTION_S)

    def suspect(self) -> None:
        """The coordinator takes a live host for lost, for a while."""
        name = self._any()
        if self.can_lose(name):
            self.timeline.note(f"{name} is suspected")
            self._tell_hosts(name)
            self._later(self._tell_hosts)

    def inject_at_random(self, faults: int, until: float) -> None:
        """Inject faults, and propose entries, at random times until a time."""
        kinds = [self.kill, self.cut, self.mute, self.pause, self.suspect, self.join, self.leave]
        kinds.append(self.kill_others)
        for _ in range(faults):
            fault = self.chance.choice(kinds)
            self.timeline.at(self.chance.uniform(0, until), fault)
            self.timeline.at(self.chance.uniform(0, until), self.propose)

    def run_until(self, limit: float) -> None:
        """Let time pass."""
        while self.timeline.step(limit):
            pass
        self.timeline.now = limit

    def _any(self) -> str:
        return self.chance.choice(list(self.machines))

    def _later(self, act: Callable[..., None], *arguments: Any) -> None:
        self.timeline.after(self.chance.uniform(0.1, 3 * ELECTION_S), act, *arguments)

    def _tell_hosts(self, suspected: str = "") -> None:
        hosts = tuple(name for name in self.machines if name != suspected)
        for name in list(self.leading):
            until = self._paused_until.get(name, 0.0)
            if self.timeline.now < until:  # it is told what is true then
                self.timeline.at(until, self._tell_hosts)
            else:
                self._tell(name, HostsChanged(hosts))

    def _tell(self, name: str, event: ConsensusEvent) -> None:
        machine = self.machines.get(name)
        if machine is None:
            return
        if self.timeline.now < self._paused_until.get(name, 0.0):
            self.timeline.at(self._paused_until[name], self._tell, name, event)
            return
        self._paused_until.pop(name, None)
        log = machine.log
        is_leading = name in self.leading
        actions = machine.handle(event, self.timeline.now)
        machine.check_invariants()
        if not is_leading and not isinstance(event, MessageReceived | HostEnded | Tick):
            assert (actions, machine.log) == ([], log), "only a leader proposes"
        if machine.log is not log:
            self.record.check(log, machine.log)
        if machine.role is ElectionRole.LEADER:
            self.record.check_leader(machine, self.committed)
        for action in actions:
            self._perform(name, action)
        self._wake(name)

    def _perform(self, name: str, action: ConsensusAction) -> None:
        match action:
            case SendMessage(to, message):
                self._send(name, to, message)
            case Committed(index, entry):
                assert index == self._known_up_to[name] + 1, "entries come in order"
                self._known_up_to[name] = index
                if index > len(self.committed):
                    self.committed.append(entry)
                assert self.committed[index - 1] == entry, "what is committed never changes"
            case BecameLeader(term):
                self.timeline.note(f"{name} leads term {term}")
                others = self.leading.keys() - self._paused_until.keys()
                is_patient = self.quorum_s > ELECTION_S or term in self._transferred
                assert not others or is_patient, "two leaders at one time"
                self.leading[name] = term
                self.timeline.after(self.chance.uniform(0, 1), self._tell_hosts)
            case SteppedDown(term):
                self.timeline.note(f"{name} has stepped down from term {term}")
                assert self.leading.pop(name) == term

    def _send(self, sender: str, to: str, message: ConsensusMessage) -> None:
        if isinstance(message, RequestVote) and message.is_transfer:
            self._transferred.add(message.term)
        for _ in range(1 + (self.chance.random() < 0.05)):  # some come twice
            is_cut = (sender, to) in self._muted or self.cuts.separate(sender, to)
            if not (is_cut or self.link.loses(self.chance)) and to in self.machines:
                delay_s = self.link.draw_delay_s(self.chance)
                self.timeline.after(delay_s, self._tell, to, MessageReceived(sender, message))

    def _wake(self, name: str) -> None:
        due = self.machines[name].next_deadline()
        if due is not None:
            self.timeline.at(max(due, self.timeline.now), self._tick, name, due)

    def _tick(self, name: str, due: float) -> None:
        # Of several wake-ups only that which is still due counts.
        if name in self.machines and self.machines[name].next_deadline() == due:
            self._tell(name, Tick())


class Record:
    """All entries that any host ever had, and all leaders."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[ReplicatedEntry, int]] = {}
        self._leaders: dict[int, str] = {}

    def check(self, before: ReplicatedLog, log: ReplicatedLog) -> None:
        """Logs that have an entry with the same index and term are equal up to it."""
        same = 0
        for old, new in zip(before.entries, log.entries, strict=False):
            if old is not new:
                break
            same += 1
        for index in range(same + 1, log.last_index + 1):
            entry = (log.entries[index - 1], log.term_of(index - 1))
            first = self._entries.setdefault((index, entry[0].term), entry)
            assert first == entry, "logs do not match"

    def check_leader(
        self, machine: ConsensusStateMachine, committed: list[ReplicatedEntry]
    ) -> None:
        """A term has one leader, and that has all entries that were committed before."""
        leader = self._leaders.setdefault(machine.term, machine.host)
        assert leader == machine.host, "two leaders of a term"
        if machine.term == max(self._leaders):
            known = machine.log.entries[: len(committed)]
            assert known == tuple(committed), "a leader lacks entries"


def play(seed: int) -> SimulatedHosts:
    """A history with faults, and then one without, in which all must become well."""
    simulation = SimulatedHosts(seed, hosts=(1, 2, 3, 4, 5, 7)[seed % 6])
    simulation.inject_at_random(faults=8, until=FAULTS_S)
    simulation.run_until(FAULTS_S + 3 * ELECTION_S)  # until all cuts are healed
    simulation.link = SimulatedLink(0.01)
    simulation.run_until(simulation.timeline.now + CALM_S)
    simulation.propose()
    simulation.run_until(simulation.timeline.now + ELECTION_S)
    assert_well(simulation)
    return simulation


def assert_well(simulation: SimulatedHosts) -> None:
    """One host leads, the right number votes, and all voters have committed all entries."""
    (leader,) = (simulation.machines[name] for name in simulation.leading)
    voters = leader.log.voters
    assert next_voters(voters, leader.host, tuple(simulation.machines)) == voters
    payloads = [entry.payload for entry in simulation.committed]
    assert payloads.count(f"{leader.host} {simulation.num_proposals}") == 1
    for voter in voters:
        assert simulation.machines[voter].commit_index == len(simulation.committed)


@pytest.fixture(autouse=True)
def few_entries_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.consensus.consensus.MAX_BATCH", 3)


@pytest.mark.parametrize("first", range(0, 150, 10))
def test_faults_lose_no_decision_and_a_leader_emerges(first: int) -> None:
    for seed in range(first, first + 10):
        play(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 10_000, 1_000))
def test_many_faults_lose_no_decision_and_a_leader_emerges(first: int) -> None:
    for seed in range(first, first + 1_000):
        play(seed)


def test_one_seed_is_one_history() -> None:
    logs = [play(20).timeline.log for _ in range(2)]
    assert logs[0] == logs[1]
    assert any("leads term 3" in line for line in logs[0])
