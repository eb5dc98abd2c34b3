"""The workers of one host, meeting in the arena.

A barrier is one counter a worker: each raises its own and waits for the others'. It is a waiter's
own duty to see whether its generation is over, so nobody is ever stuck: a sleep lasts `NAP_S` at
most.

A worker comes to a barrier with a tag, which says what it is for, and a value for the others to
see. The two are kept for the newest two barriers: a worker that is through one may reach the next
while a slower one still reads, but cannot get further before that one has followed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from holdfast.arena.memory import ABORT_POLL_S, MAILBOX_BYTES, Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.errors import Aborted, HoldfastError, JobError

SPINS: Final = 200
"""Looks before sleeping: a few tens of microseconds, about what a sleep and a wake cost."""

_STEPS: Final = 1 << 48
"""A barrier's word is its tag, times this, plus its step."""


class SharedMemoryGroup:
    """One worker among those of its host.

    Args:
        arena: The host's shared memory.
        rank: This worker.
        timeout_s: How long to wait for the others, seconds.
        describe: Gives what a worker does at a barrier, by tag and step; for errors.

    Attributes:
        members: The ranks that take part, in order: at first all.
        member_index: The position of this worker among them.
    """

    def __init__(
        self, arena: Arena, rank: int, timeout_s: float, describe: Callable[[int, int], str]
    ) -> None:
        self._arena, self._status = arena, WorkerStatus(arena, rank)
        self._timeout_s, self._describe = timeout_s, describe
        self.rank = rank
        self.members, self.member_index = tuple(range(arena.world_size)), rank

    @property
    def generation(self) -> int:
        """The generation that this worker takes part in; 0 before its first one."""
        return self._arena.generation

    def enter(self, generation: int, members: tuple[int, ...]) -> None:
        """Take part in a generation, with others than before perhaps."""
        self.members, self.member_index = members, members.index(self.rank)
        self._arena.enter_generation(self.rank, generation)

    def check_abort(self) -> None:
        """Raises: Aborted: The generation is over."""
        self._arena.check_abort()

    def barrier(self, tag: int, step: int, value: int = 0) -> tuple[int, ...]:
        """Wait until every member is here; returns the value that each brought, in their order.

        Raises:
            Aborted: The generation is over, noticed within `NAP_S`.
            JobError: Another worker came for something else.
            HoldfastError: The others did not come in time.
        """
        arena, rank = self._arena, self.rank
        odd = (arena[rank, Word.ARRIVALS] + 1) & 1
        word = tag * _STEPS + step
        arena[rank, Word(Word.TAG_EVEN + odd)] = word
        arena[rank, Word(Word.VALUE_EVEN + odd)] = value
        before = self._status.enter(Phase.WAIT)
        count = arena.arrive(rank)
        try:
            for peer in self.members:
                self._await(peer, count)
        except Aborted:
            # Who looked just before the last one came must not be left behind by those who did not.
            if any(arena[peer, Word.ARRIVALS] < count for peer in self.members):
                raise
        self._status.enter(before)
        tags = {peer: arena[peer, Word(Word.TAG_EVEN + odd)] for peer in self.members}
        if any(other != word for other in tags.values()):
            self._raise_diverged(tags)
        return tuple(arena[peer, Word(Word.VALUE_EVEN + odd)] for peer in self.members)

    def gather(self, tag: int, step: int, payload: bytes) -> tuple[bytes, ...]:
        """Wait at a barrier until every member is here; returns the payload of each, in order.

        Args:
            tag, step: As for `barrier`.
            payload: At most `MAILBOX_BYTES`.

        Raises:
            As `barrier`.
        """
        assert len(payload) <= MAILBOX_BYTES, f"a payload of {len(payload)} bytes"
        count = self._arena[self.rank, Word.ARRIVALS] + 1
        self._arena.mailbox(self.rank, count)[: len(payload)] = payload
        sizes = self.barrier(tag, step, len(payload))
        return tuple(
            bytes(self._arena.mailbox(peer, count)[:size])
            for peer, size in zip(self.members, sizes, strict=True)
        )

    def _await(self, peer: int, count: int) -> None:
        arena = self._arena
        for _ in range(SPINS):
            if arena[peer, Word.ARRIVALS] >= count:
                return
        deadline = time.monotonic() + self._timeout_s
        while (seen := arena[peer, Word.ARRIVALS]) < count:
            arena.check_abort()
            if time.monotonic() > deadline:
                phase = Phase(arena[peer, Word.PHASE]).name.lower()
                raise HoldfastError(
                    f"rank {self.rank} waited {self._timeout_s:.0f} s for rank {peer}, "
                    f"which is in phase '{phase}'; raise timeout_s if a step may take that long"
                )
            arena.sleep_until_arrival(peer, seen, ABORT_POLL_S)

    def _raise_diverged(self, tags: dict[int, int]) -> None:
        doing = "; ".join(
            f"rank {peer} is {self._describe(*divmod(tag, _STEPS))}" for peer, tag in tags.items()
        )
        raise JobError(
            f"workers reached different barriers: {doing}. Every worker must run the same loop: "
            "leave it, evaluate or save on a condition that is the same for all"
        )
