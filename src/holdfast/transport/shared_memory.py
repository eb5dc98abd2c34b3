"""The workers of one host, meeting in the arena.

A barrier is one counter a worker: each raises its own and waits for the others'. It is a waiter's
own duty to see whether its generation is over, so nobody is ever stuck: a sleep lasts `NAP_S` at
most.

A worker comes to a barrier with a tag, which says what it is for, and a value for the others to
see. The two are kept for the newest two barriers: a worker that is through one may reach the next
while a slower one still reads, but cannot get further before that one has followed.
"""

from __future__ import annotations

import enum
import time
from typing import Final

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.errors import Aborted, HoldfastError, JobError

SPINS: Final = 200
"""Looks before sleeping: a few tens of microseconds, about what a sleep and a wake cost."""

ABORT_POLL_S: Final = 0.002
"""The longest sleep between two looks whether the generation is over, seconds."""


@enum.unique
class BarrierTag(enum.IntEnum):
    """What a barrier is for."""

    ATTACH = 1
    RESTORE = 2
    STAGED = 3
    COPIED = 4
    TABLES = 5
    WEIGHTS = 6
    PARTIALS = 7
    ROOT = 8
    CLIP = 9
    EVALUATION = 10
    EVALUATED = 11
    END = 12
    RECHECK = 13
    COMPARE = 14
    VERIFY = 15


_DOING: Final = {
    BarrierTag.ATTACH: "attaching its model",
    BarrierTag.RESTORE: "restoring a checkpoint",
    BarrierTag.STAGED: "handing on its state at step {step}",
    BarrierTag.COPIED: "taking over the state of step {step}",
    BarrierTag.TABLES: "sharing out step {next}",
    BarrierTag.WEIGHTS: "weighing its shards of step {next}",
    BarrierTag.PARTIALS: "summing the gradient of step {next}",
    BarrierTag.ROOT: "summing the gradient of step {next}",
    BarrierTag.CLIP: "clipping the gradient of step {next}",
    BarrierTag.EVALUATION: "evaluating after step {step}",
    BarrierTag.EVALUATED: "evaluating after step {step}",
    BarrierTag.END: "at the end of its function",
    BarrierTag.COMPARE: "comparing its replica after step {step}",
    BarrierTag.VERIFY: "verifying shards of step {next}",
    BarrierTag.RECHECK: "computing shards of step {next} again",
}


class SharedMemoryGroup:
    """One worker among those of its host.

    Args:
        arena: Where they meet.
        rank: This worker.
        timeout_s: How long to wait for the others, seconds.

    Attributes:
        members: The ranks that take part, in order: at first all.
        place: Which of them this worker is.
    """

    def __init__(self, arena: Arena, rank: int, timeout_s: float) -> None:
        self.arena, self.rank, self.timeout_s = arena, rank, timeout_s
        self.members, self.member_index = tuple(range(arena.world_size)), rank

    def enter(self, generation: int, members: tuple[int, ...]) -> None:
        """Take part in a generation, with others than before perhaps."""
        self.members, self.member_index = members, members.index(self.rank)
        self.arena.enter_generation(self.rank, generation)

    def barrier(self, tag: BarrierTag, step: int, value: int = 0) -> tuple[int, ...]:
        """Wait until every member is here; returns the value that each brought, in their order.

        Raises:
            Aborted: The generation is over, noticed within `NAP_S`.
            JobError: Another worker came for something else.
            HoldfastError: The others did not come in time.
        """
        arena, rank = self.arena, self.rank
        odd = (arena[rank, Word.ARRIVALS] + 1) & 1
        word = tag << 48 | step
        arena[rank, Word(Word.TAG_EVEN + odd)] = word
        arena[rank, Word(Word.VALUE_EVEN + odd)] = value
        doing = arena.enter(rank, Phase.WAIT)
        count = arena.arrive(rank)
        try:
            for peer in self.members:
                self._await(peer, count)
        except Aborted:
            # Who looked just before the last one came must not be left behind by those who did not.
            if any(arena[peer, Word.ARRIVALS] < count for peer in self.members):
                raise
        arena.enter(rank, doing)
        tags = {peer: arena[peer, Word(Word.TAG_EVEN + odd)] for peer in self.members}
        if any(other != word for other in tags.values()):
            self._raise_diverged(tags)
        return tuple(arena[peer, Word(Word.VALUE_EVEN + odd)] for peer in self.members)

    def agree(self, tag: BarrierTag, step: int, value: int, problem: str) -> None:
        """A barrier to which all must bring the same value.

        Raises:
            JobError: Two of them have `problem`; else as `barrier`.
        """
        found = self.barrier(tag, step, value)
        odd = [peer for peer, theirs in zip(self.members, found, strict=True) if theirs != found[0]]
        if odd:
            raise JobError(f"rank {self.members[0]} and rank {odd[0]} have {problem}")

    def _await(self, peer: int, count: int) -> None:
        arena = self.arena
        for _ in range(SPINS):
            if arena[peer, Word.ARRIVALS] >= count:
                return
        deadline = time.monotonic() + self.timeout_s
        while (seen := arena[peer, Word.ARRIVALS]) < count:
            arena.check_abort()
            if time.monotonic() > deadline:
                phase = Phase(arena[peer, Word.PHASE]).name.lower()
                raise HoldfastError(
                    f"rank {self.rank} waited {self.timeout_s:.0f} s for rank {peer}, "
                    f"which is in phase '{phase}'; raise timeout_s if a step may take that long"
                )
            arena.sleep_until_arrival(peer, seen, ABORT_POLL_S)

    def _raise_diverged(self, tags: dict[int, int]) -> None:
        places = "; ".join(
            f"rank {peer} is {_DOING[BarrierTag(tag >> 48)].format(step=step, next=step + 1)}"
            for peer, tag in tags.items()
            for step in [tag & (1 << 48) - 1]
        )
        raise JobError(
            f"the workers have parted: {places}. Every worker must run the same loop: "
            "leave it, evaluate or save on a condition that is the same for all"
        )
