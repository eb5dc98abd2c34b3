"""Consensus of three hosts, in every order of messages, losses, repeats and timeouts.

A state is what three hosts are in, and all messages that were sent so far. Each of these may arrive
next, again, or never. The machines are those of the product: what one does with an event is
computed once, and looked up in all states in which the same happens.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from holdfast.core.consensus.consensus import ConsensusStateMachine, ElectionRole
from holdfast.core.consensus.log import ReplicatedEntry
from holdfast.core.consensus.messages import (
    ConsensusEvent,
    ConsensusMessage,
    MessageReceived,
    Propose,
    SendMessage,
)
from holdfast.core.events import Tick

HOSTS = ("a", "b", "c")
ELECTION_S = 1.0
NONE = -1


@dataclass(frozen=True)
class World:
    """How three hosts begin, and what may happen to them.

    Attributes:
        logs: The terms of the entries that each has after the configuration.
        committed: How many of these each knows to be committed.
        terms: Terms that may begin after those of the entries.
        timeouts: How many each host may have.
        proposals: Decisions that may be proposed.
    """

    logs: tuple[tuple[int, ...], ...] = ((), (), ())
    committed: tuple[int, ...] = (0, 0, 0)
    terms: int = 2
    timeouts: tuple[int, ...] = (1, 1, 0)
    proposals: int = 0

    @property
    def term(self) -> int:
        """The newest term in the beginning."""
        return max((0, *itertools.chain(*self.logs)))

    def machines(self) -> Iterator[ConsensusStateMachine]:
        """The machines of the hosts."""
        for host, terms, committed in zip(HOSTS, self.logs, self.committed, strict=True):
            machine = ConsensusStateMachine(host, voters=HOSTS, election_s=ELECTION_S, now=0.0)
            entries = (ReplicatedEntry(term, f"{term}.{n}") for n, term in enumerate(terms))
            machine.log = machine.log.append(*entries)
            machine.term = self.term
            machine.commit_index = committed and 1 + committed
            yield machine


class Letter(NamedTuple):
    """A message from a host to another; hosts are numbers."""

    sender: int
    to: int
    message: ConsensusMessage


class Local(NamedTuple):
    """A host at a time of its own clock."""

    machine: ConsensusStateMachine
    now: float


class State(NamedTuple):
    """Three hosts, and what may still happen to them.

    Attributes:
        locals: The number of each host's local state.
        sent: The messages that were sent, as the bits of their numbers.
        timeouts: How many each host may still have.
        proposals: How many decisions may still be proposed.
        leaders: The leader of each term so far.
    """

    locals: tuple[int, ...]
    sent: int
    timeouts: tuple[int, ...]
    proposals: int
    leaders: tuple[int, ...]


Outcome = tuple[int, int]
"""The local state of a host after an event, and the messages that it has sent, as bits."""


@dataclass
class Search:
    """A search through all states, breadth first.

    Attributes:
        world: Where it begins.
        locals, letters: All local states and messages that were found, by their numbers.
    """

    world: World
    locals: list[Local] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    _bits: dict[Letter, int] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)
    _letters_to: list[int] = field(default_factory=lambda: [0] * len(HOSTS))
    _outcomes: dict[tuple[int, str], Outcome] = field(default_factory=dict)
    _arrivals: dict[tuple[int, int], tuple[int, set[Outcome]]] = field(default_factory=dict)
    _checked: set[tuple[int, int]] = field(default_factory=set)

    def run(self, depth: int) -> int:
        """Visit all states that so many events lead to; returns their number."""
        world = self.world
        numbers = tuple(self._number_of(Local(machine, 0.0)) for machine in world.machines())
        leaders = (NONE,) * (world.term + world.terms + 1)
        level = {State(numbers, 0, world.timeouts, world.proposals, leaders)}
        seen = set(level)
        for _ in range(depth):
            level = {each for state in level for each in self._successors(state)} - seen
            seen |= level
        return len(seen)

    def _successors(self, state: State) -> Iterator[State]:
        for host, number in enumerate(state.locals):
            letters = state.sent & self._letters_to[host]
            for outcome in self._on_arrivals(number, letters)[1]:
                yield self._after(state, host, outcome)
            (machine, now) = self.locals[number]
            is_leader = machine.role is ElectionRole.LEADER
            if state.timeouts[host] and (is_leader or machine.term < len(state.leaders) - 1):
                timeouts = lowered(state.timeouts, host)
                for event in ("tick", "late tick") if is_leader else ("tick",):
                    outcome = self._outcome(number, event)
                    yield self._after(state, host, outcome)._replace(timeouts=timeouts)
            if state.proposals and machine.is_ready:
                successor = self._after(state, host, self._outcome(number, "propose"))
                yield successor._replace(proposals=state.proposals - 1)
            # A voter that has heard a leader refuses others, until some time has passed.
            if not is_leader and machine._hears_leader(now):
                yield self._after(state, host, self._outcome(number, "silence"))

    def _after(self, state: State, host: int, outcome: Outcome) -> State:
        (number, sent) = outcome
        numbers = (*state.locals[:host], number, *state.locals[host + 1 :])
        for other in numbers:
            if (number, other) not in self._checked:
                self._checked.add((number, other))
                check(self.locals[number].machine, self.locals[other].machine)
        leaders = state.leaders
        machine = self.locals[number].machine
        if machine.role is ElectionRole.LEADER and leaders[machine.term] != host:
            assert leaders[machine.term] == NONE, "two leaders of a term"
            leaders = (*leaders[: machine.term], host, *leaders[machine.term + 1 :])
        answered = self._answered(numbers, state.sent | sent)
        return State(numbers, answered, state.timeouts, state.proposals, leaders)

    def _answered(self, numbers: tuple[int, ...], sent: int) -> int:
        """Let all messages arrive that change no host, but are answered.

        With more messages under way more can happen, so nothing is missed if these arrive first.
        """
        before = NONE
        while before != sent:
            before = sent
            for host, number in enumerate(numbers):
                sent |= self._on_arrivals(number, sent & self._letters_to[host])[0]
        return sent

    def _on_arrivals(self, number: int, letters: int) -> tuple[int, set[Outcome]]:
        """The answers to messages that do not change a host, and the outcomes of the others."""
        key = (number, letters)
        if key not in self._arrivals:
            outcomes = {
                self._outcome(number, str(bit))
                for bit in range(letters.bit_length())
                if letters >> bit & 1
            }
            answers = 0
            for after, sent in outcomes:
                answers |= sent if after == number else 0
            self._arrivals[key] = (answers, {each for each in outcomes if each[0] != number})
        return self._arrivals[key]

    def _outcome(self, number: int, event: str) -> Outcome:
        key = (number, event)
        if key not in self._outcomes:
            self._outcomes[key] = self._perform(number, event)
        return self._outcomes[key]

    def _perform(self, number: int, what: str) -> Outcome:
        old, now = self.locals[number]
        machine = copy.copy(old)
        event: ConsensusEvent = Tick()
        if what == "tick":
            now = machine.next_deadline() or now
        elif what in ("late tick", "silence"):
            now += ELECTION_S
        elif what == "propose":
            event = Propose(f"{machine.host}{machine.term}.{machine.log.last_index}")
        else:
            letter = self.letters[int(what)]
            event = MessageReceived(HOSTS[letter.sender], letter.message)
        actions = [] if what == "silence" else machine.handle(event, now)
        machine.check_invariants()
        committed = old.log.entries[: old.commit_index]
        assert machine.log.entries[: old.commit_index] == committed, "a committed entry changes"
        host = HOSTS.index(machine.host)
        sent = 0
        for action in actions:
            if isinstance(action, SendMessage):
                sent |= 1 << self._post(Letter(host, HOSTS.index(action.to), action.message))
        return self._number_of(Local(machine, now)), sent

    def _post(self, letter: Letter) -> int:
        """The number of a message."""
        bit = self._bits.setdefault(letter, len(self.letters))
        if bit == len(self.letters):
            self.letters.append(letter)
            self._letters_to[letter.to] |= 1 << bit
        return bit

    def _number_of(self, local: Local) -> int:
        """The number of a local state; it is the same in states in which the same may happen."""
        machine, now = local
        values = {**vars(machine), "_progress": tuple(machine._progress.items()), "now": now}
        # Only a leader says what its clock is. Of others it counts whether they hear a leader.
        if machine.role is not ElectionRole.LEADER:
            heard = machine._hears_leader(now)
            values |= {"_heard_at": heard, "_election_at": 0, "_heartbeat_at": 0, "now": 0}
        number = self._numbers.setdefault(tuple(values.values()), len(self.locals))
        if number == len(self.locals):
            self.locals.append(local)
        return number


def check(one: ConsensusStateMachine, other: ConsensusStateMachine) -> None:
    """Raises: AssertionError: Two hosts are in what they may never be in at one time."""
    common = min(one.commit_index, other.commit_index)
    assert one.log.entries[:common] == other.log.entries[:common], "other entries are committed"
    pairs = list(zip(one.log.entries, other.log.entries, strict=False))
    same = max((place for place, (a, b) in enumerate(pairs) if a.term == b.term), default=NONE)
    assert all(a == b for a, b in pairs[: same + 1]), "logs do not match"
    for leader, peer in ((one, other), (other, one)):
        if leader.role is ElectionRole.LEADER and leader.term >= peer.term:
            committed = peer.log.entries[: peer.commit_index]
            assert leader.log.entries[: peer.commit_index] == committed, "a leader lacks entries"


def lowered(values: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Values of which one is less by one."""
    return (*values[:place], values[place] - 1, *values[place + 1 :])


PROPOSED = World(proposals=1)
THREE_CANDIDATES = World(timeouts=(1, 1, 1))
ONE_LACKS_AN_ENTRY = World(logs=((1, 1), (1, 1), (1,)), committed=(2, 0, 0), timeouts=(0, 1, 1))
ONE_HAS_OLD_ENTRIES = World(
    logs=((2, 2), (2, 2), (1, 1, 1)), committed=(2, 0, 0), timeouts=(1, 0, 1)
)
FIGURE_8 = World(logs=((1,), (2,), ()))
"""In the paper: an entry of term 1 reaches a majority in term 3, and is replaced in term 4."""


@pytest.fixture(autouse=True)
def one_entry_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.consensus.consensus.MAX_BATCH", 1)


@pytest.mark.parametrize(
    ("world", "depth"),
    [
        (PROPOSED, 11),
        (ONE_LACKS_AN_ENTRY, 13),
        (ONE_HAS_OLD_ENTRIES, 13),
        pytest.param(FIGURE_8, 14, marks=pytest.mark.slow),
        pytest.param(PROPOSED, 40, marks=pytest.mark.soak),
        pytest.param(ONE_LACKS_AN_ENTRY, 40, marks=pytest.mark.soak),
        pytest.param(ONE_HAS_OLD_ENTRIES, 40, marks=pytest.mark.soak),
        pytest.param(FIGURE_8, 40, marks=pytest.mark.soak),
        pytest.param(THREE_CANDIDATES, 13, marks=pytest.mark.soak),
    ],
)
def test_in_no_order_is_a_decision_lost_or_a_term_led_by_two(world: World, depth: int) -> None:
    assert Search(world).run(depth) > 2_000
