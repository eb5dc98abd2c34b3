"""Group: the members of a generation, which meet in the arena of their host.

A barrier is one counter per worker: each worker raises its own and waits for the others'. A waiting
worker checks at least every `ABORT_POLL_S` whether its generation is over, so no wait outlives it.

A worker brings a tag and a value to a barrier, or a payload. The arena keeps them for the newest
two barriers: a worker that has passed one barrier may reach the next while a slower worker still
reads, but passes that one only once the slower worker has arrived, too.

On several hosts, each arena has a line for every rank. The first worker of a host, its leader,
exchanges with the other leaders what their workers bring to a barrier, and writes it to the lines
of remote ranks. For the other workers a barrier is the same as on one host.

A group moves bytes and does not know what these mean: the modules that use it define their own
barrier tags.
"""

from __future__ import annotations

import enum
import struct
import time
from collections.abc import Callable
from typing import Final, Self

from holdfast.arena.memory import ABORT_POLL_S, MAILBOX_BYTES, Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.network import Network
from holdfast.collectives.tcp import Buffers, Deadline, StallReport
from holdfast.errors import Aborted, HoldfastError, JobError

SPINS: Final = 200
"""Checks before sleeping: some 10 µs, about what a sleep and a wake cost."""

MAX_RANKS_SHOWN: Final = 8
"""Most ranks that do the same and are named in an error."""

_STEPS: Final = 1 << 48
"""A barrier's word is its tag, times this, plus its step."""

_FRAME: Final = struct.Struct("=Qq?")
"""First words of a leader: its count of barriers, its word, and whether there are payloads."""
_LEADERS_LANE: Final = 0


class BarrierTag(enum.IntEnum):
    """Purpose of a barrier: the base of all tags.

    A tag's value is unique among the tags of a run.

    Attributes:
        doing: Activity of a worker that waits there, after "rank 2 is"; `{step}` stands for the
            steps committed and `{next}` for the step after those.
    """

    doing: str

    def __new__(cls, value: int, doing: str) -> Self:
        tag = int.__new__(cls, value)
        tag._value_ = value
        tag.doing = doing
        return tag


class Group:
    """The members of one generation, seen by one of them.

    Args:
        arena: The host's shared memory.
        rank: This worker.
        timeout_s: Limit of a wait for the others, seconds.
        describe: Gives what a worker does at a barrier, by tag and step; for errors.

    Attributes:
        members: The ranks that take part, in order: at first all.
        member_index: The position of this worker among them.
        local: Members on this host.
        network: The connections to other hosts; None if there are none.
    """

    network: Network | None

    def __init__(
        self, arena: Arena, rank: int, timeout_s: float, describe: Callable[[int, int], str]
    ) -> None:
        self._arena = arena
        self._status = WorkerStatus(arena, rank)
        self._timeout_s = timeout_s
        self._describe = describe
        self.rank = rank
        self.members = tuple(range(arena.world_size))
        self.member_index = rank
        self.local = self.members
        self.network = None

    @property
    def generation(self) -> int:
        """The generation that this worker takes part in; 0 before its first one."""
        return self._arena.generation

    def enter(
        self, generation: int, members: tuple[int, ...], network: Network | None = None
    ) -> None:
        """Take part in a generation with these members."""
        self.members, self.member_index = members, members.index(self.rank)
        self.network = network
        self.local = members if network is None else network.hosts.ranks[network.host]
        if network is not None and self.rank == self.local[0]:
            # The lines of remote ranks have no worker here: the leader, which relays for them,
            # writes them.
            for peer in set(members) - set(self.local):
                self._arena.enter_generation(peer, generation)
        self._arena.enter_generation(self.rank, generation)

    def deadline(self, report: StallReport) -> Deadline:
        """The end of a wait for other hosts that begins now."""
        return Deadline(self.check_abort, self._timeout_s, self._status, report)

    def check_abort(self) -> None:
        """Raises: Aborted: The generation is over."""
        self._arena.check_abort()

    def barrier(self, tag: BarrierTag, step: int, value: int = 0) -> tuple[int, ...]:
        """Wait for all members; returns the value (63 bits) of each, in the order of `members`.

        Raises:
            Aborted: The generation is over, noticed within `ABORT_POLL_S`.
            JobError: Another member is at a different barrier.
            HoldfastError: A member did not arrive within `timeout_s`.
        """
        return self._meet(self.members, tag, step, value)

    def is_ahead(self, peer: int) -> bool:
        """True if a member of this host waits at a barrier that this worker has not reached."""
        return self._arena[peer, Word.ARRIVALS] > self._arena[self.rank, Word.ARRIVALS]

    def local_barrier(self, tag: BarrierTag, step: int, value: int = 0) -> tuple[int, ...]:
        """Wait like `barrier`, for the members of this host only, in the order of `local`."""
        return self._meet(self.local, tag, step, value)

    def _meet(
        self,
        members: tuple[int, ...],
        tag: BarrierTag,
        step: int,
        value: int,
        *,
        has_payload: bool = False,
    ) -> tuple[int, ...]:
        arena = self._arena
        rank = self.rank
        # Tag and value are written before the arrival is counted: x86-64 keeps the order of stores,
        # so a peer that sees the count sees both.
        parity = (arena[rank, Word.ARRIVALS] + 1) & 1
        word = tag * _STEPS + step
        arena[rank, Word(Word.TAG_EVEN + parity)] = word
        arena[rank, Word(Word.VALUE_EVEN + parity)] = value
        # From here on peers may read this worker's values. It does not change them before the
        # barrier after the next, which it reaches only once all have read them.
        before = self._status.begin_wait()
        count = arena.arrive(rank)
        try:
            # A leader brings the arrivals of remote ranks; for the others those are ordinary
            # arrivals.
            if members != self.local and rank == self.local[0]:
                self._relay(count, word, has_payload=has_payload)
            for peer in members:
                self._await(peer, count)
        except Aborted:
            # All may have arrived since the last check. Then some have passed, so all must pass.
            if any(arena[peer, Word.ARRIVALS] < count for peer in members):
                raise
        # All members have arrived, even if the generation is over by now: what they bring is whole.
        self._status.enter(before)
        tags = {peer: arena[peer, Word(Word.TAG_EVEN + parity)] for peer in members}
        # A worker at another barrier has taken another path through user code: to wait with it
        # would pair values of different meaning.
        if any(other != word for other in tags.values()):
            self._raise_diverged(tags)
        return tuple(arena[peer, Word(Word.VALUE_EVEN + parity)] for peer in members)

    def _relay(self, count: int, word: int, *, has_payload: bool) -> None:
        """Exchange what local workers bring to a barrier with the leaders of other hosts."""
        network = self.network
        assert network is not None
        # What local workers bring must be complete before it is sent.
        for peer in self.local:
            self._await(peer, count)
        flows = {
            (host, _LEADERS_LANE): (
                self._frame(count, word, has_payload=has_payload),
                self._take_frame(count, network.hosts.ranks[host]),
            )
            for host in network.others
        }
        network.transfer(flows, self._describe(*divmod(word, _STEPS)))

    def _frame(self, count: int, word: int, *, has_payload: bool) -> Buffers:
        """Content that local workers bring, to be sent to one other host."""
        # Values are sizes where there are payloads, so the receiver knows all lengths from the
        # values.
        at = Word(Word.VALUE_EVEN + (count & 1))
        values = [self._arena[peer, at] for peer in self.local]
        yield memoryview(_FRAME.pack(count, word, has_payload))
        yield memoryview(struct.pack(f"={len(values)}q", *values))
        for peer, size in zip(self.local, values, strict=True):
            if has_payload:
                yield self._arena.mailbox(peer, count)[:size]

    def _take_frame(self, count: int, ranks: tuple[int, ...]) -> Buffers:
        """Receive what the workers of another host bring, and let them arrive here."""
        arena = self._arena
        parity = count & 1
        head = bytearray(_FRAME.size + 8 * len(ranks))
        yield memoryview(head)
        _, word, has_payload = _FRAME.unpack_from(head)
        values = struct.unpack_from(f"={len(ranks)}q", head, _FRAME.size)
        for peer, value in zip(ranks, values, strict=True):
            if has_payload:
                yield arena.mailbox(peer, count)[:value]
            # The remote worker's words, in the order in which a local worker would write them: its
            # arrival is last.
            arena[peer, Word(Word.TAG_EVEN + parity)] = word
            arena[peer, Word(Word.VALUE_EVEN + parity)] = value
            arena.arrive(peer, count)

    def gather(self, tag: BarrierTag, step: int, payload: bytes) -> tuple[bytes, ...]:
        """Wait like `barrier`, with a payload of up to `MAILBOX_BYTES` in place of the value."""
        assert len(payload) <= MAILBOX_BYTES, f"a payload of {len(payload)} bytes"
        count = self._arena[self.rank, Word.ARRIVALS] + 1
        # Of a worker's two mailboxes, a slow peer may still read the other one, of the barrier
        # before.
        self._arena.mailbox(self.rank, count)[: len(payload)] = payload
        sizes = self._meet(self.members, tag, step, len(payload), has_payload=True)
        return tuple(
            bytes(self._arena.mailbox(peer, count)[:size])
            for peer, size in zip(self.members, sizes, strict=True)
        )

    def begin_round(self) -> int:
        """Let members of this host read what this worker has for the next round of an all-reduce;
        returns the number of the round.
        """
        return self._arena.begin_round(self.rank)

    def await_round(self, peer: int, number: int) -> None:
        """Wait until a member of this host has begun a round.

        Raises:
            Aborted: The generation is over, noticed within `ABORT_POLL_S`.
            HoldfastError: It did not within `timeout_s`.
        """
        if self._arena[peer, Word.ROUNDS] >= number:
            return
        before = self._status.begin_wait()
        self._await(peer, number, Word.ROUNDS)
        self._status.enter(before)

    def _await(self, peer: int, count: int, word: Word = Word.ARRIVALS) -> None:
        arena = self._arena
        # First without a system call: a peer that is nearly as fast arrives while this loop runs.
        for _ in range(SPINS):
            if arena[peer, word] >= count:
                return
        deadline = time.monotonic() + self._timeout_s
        while (seen := arena[peer, word]) < count:
            # An abort changes no word that peers sleep on. A wake that comes between this check and
            # the sleep is lost, so the sleep is short.
            arena.check_abort()
            if time.monotonic() > deadline:
                phase = Phase(arena[peer, Word.PHASE]).name.lower()
                raise HoldfastError(
                    f"rank {self.rank} waited {self._timeout_s:.0f} s for rank {peer}, "
                    f"which is in phase '{phase}'; raise timeout_s if a step may take that long"
                )
            arena.sleep_until_above(peer, word, seen, ABORT_POLL_S)

    def _raise_diverged(self, tags: dict[int, int]) -> None:
        at: dict[int, list[int]] = {}
        for peer, tag in tags.items():
            at.setdefault(tag, []).append(peer)
        doing = "; ".join(
            f"{_named(ranks)} {self._describe(*divmod(tag, _STEPS))}" for tag, ranks in at.items()
        )
        raise JobError(
            f"workers reached different barriers: {doing}. Every worker must run the same loop: "
            "leave it, evaluate or save on a condition that is the same for all"
        )


def agree(group: Group, tag: BarrierTag, step: int, value: int, problem: str) -> None:
    """Wait at a barrier to which all members must bring the same value.

    Raises:
        JobError: Two members have `problem`.
    """
    values = group.barrier(tag, step, value)
    # Every member compares with the first one, so all raise the same error.
    for rank, other in zip(group.members, values, strict=True):
        if other != values[0]:
            raise JobError(f"rank {group.members[0]} and rank {rank} have {problem}")


def newest_barrier(arena: Arena, rank: int) -> tuple[int, int] | None:
    """The tag and the step of the newest barrier that `rank` has reached in the newest generation;
    None before its first one. For other processes, which only look.
    """
    count = arena[rank, Word.ARRIVALS]
    # A count starts at the generation times 2**32: this worker has not entered the newest one, or
    # has reached no barrier in it.
    if count <= arena.newest_generation << 32:
        return None
    return divmod(arena[rank, Word(Word.TAG_EVEN + (count & 1))], _STEPS)


def _named(ranks: list[int]) -> str:
    """Some ranks and what they do, as the beginning of a clause."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    shown = ", ".join(map(str, ranks[:MAX_RANKS_SHOWN]))
    return f"ranks {shown}{', …' if len(ranks) > MAX_RANKS_SHOWN else ''} are"
