"""Activities: what each worker does, and which ranks it waits for. It is read from the arena, where
workers publish their phases and barriers anyway.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.shared_memory import newest_barrier

_WAITS: Final = frozenset({Phase.WAIT, Phase.WAIT_REDUCE})
_WORDS: Final = MappingProxyType(
    {
        Phase.STARTING: "starting",
        Phase.DATA: "reading samples of step {next}",
        Phase.FORWARD: "running the task's code in step {next}",
        Phase.BACKWARD: "in the backward pass of step {next}",
        Phase.COLLECT: "collecting its gradients of step {next}",
        Phase.REDUCE: "summing the gradient of step {next}",
        Phase.OPTIMIZER: "updating the weights in step {next}",
        Phase.EVALUATE: "evaluating after step {step}",
        Phase.CHECKPOINT: "saving the checkpoint of step {step}",
        Phase.LEFT: "at the end of the training function",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activity of one worker.

    Attributes:
        rank: The worker.
        doing: In words, after "rank 2 was".
        waits_for: The ranks that it waits for, as far as this host knows: of other hosts, all.
    """

    rank: int
    doing: str
    waits_for: tuple[int, ...] = ()


def activities(
    arena: Arena, local: Collection[int], members: Iterable[int], *, is_script: bool
) -> list[Activity]:
    """Activities of the workers of this host.

    Args:
        arena: Arena of this host.
        local: Their ranks.
        members: All ranks of the generation.
        is_script: True if they run a script, whose steps and waits are not known.
    """
    remote = tuple(rank for rank in members if rank not in local)
    return [_activity(arena, rank, local, remote, is_script=is_script) for rank in local]


def longest_wait_s(arena: Arena, ranks: Iterable[int]) -> float:
    """For how long those of `ranks` have waited that wait for others; that of the longest."""
    now = time.monotonic_ns()
    waiting = [rank for rank in ranks if arena[rank, Word.PHASE] in _WAITS]
    return max((now - arena[rank, Word.PHASE_SINCE] for rank in waiting), default=0) / 1e9


def _activity(
    arena: Arena, rank: int, local: Collection[int], remote: tuple[int, ...], *, is_script: bool
) -> Activity:
    phase = Phase(arena[rank, Word.PHASE])
    step = arena[rank, Word.COMMITTED]
    if phase in _WAITS:
        barrier = newest_barrier(arena, rank)
        if barrier is None:
            return Activity(rank=rank, doing="waiting to resume")
        count = arena[rank, Word.ARRIVALS]
        late = [
            # Those of other hosts arrive here only once all of this host have.
            tuple(peer for peer in peers if arena[peer, Word.ARRIVALS] < count)
            for peers in (sorted(local), remote)
        ]
        return Activity(rank=rank, doing=describe(*barrier), waits_for=late[0] or late[1])
    if is_script and phase is Phase.FORWARD:
        return Activity(rank=rank, doing="running the script")
    return Activity(rank=rank, doing=_WORDS[phase].format(step=step, next=step + 1))
