"""Shares: which CPUs and GPUs of a host each worker of a run gets.

    needs, what the host has, claims of other runs ─▶ shortages, or a share for each worker

A run that needs nothing in particular claims CPUs too, so that others know of it, but is never
refused: its claim may overlap with others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of a host that one worker may use.

    Attributes:
        cpus: The numbers of its CPUs; empty: all those of its agent.
        gpus: The names of its GPUs for CUDA; empty: all those of its agent.
    """

    cpus: tuple[int, ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Needs of a run's workers on one host.

    Attributes:
        workers: Number of workers.
        cpus, gpus: CPUs and GPUs of each worker.
        memory_bytes: Memory of each worker; 0: not limited.
    """

    workers: int
    cpus: int
    gpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Resources of a host that a process may use.

    Attributes:
        cpus: The CPUs that it may run on.
        max_cpus: Most of them at a time, by the limit of a container.
        gpus: The GPUs that it may use.
        memory_bytes: All memory.
        available_bytes: Memory that is not in use now.
    """

    cpus: tuple[int, ...]
    max_cpus: int
    gpus: tuple[str, ...]
    memory_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Resources that a run uses on a host.

    Attributes:
        run: The name of its run directory.
        pid: The process that holds the claim.
        ticket: Its number in the line of those that wait, from 1; 0 once it has begun.
        cpus, gpus: Its CPUs and GPUs; none while it waits.
        memory_bytes: Memory that its workers may use.
    """

    run: str
    pid: int
    ticket: int
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Something of which too little is free.

    Attributes:
        what: `CPUs`, `GPUs` or `memory`; amounts of memory are bytes.
        each: Need of each worker.
        workers: Number of workers.
        free: Free amount.
        total: Amount that there is.
        held: Amount that each claim has.
    """

    what: str
    each: int
    workers: int
    free: int
    total: int
    held: tuple[tuple[Claim, int], ...]

    @property
    def is_final(self) -> bool:
        """True if there is too little even without any claim."""
        return self.total < self.each * self.workers


def shortages(needs: Needs, supply: Supply, claims: Sequence[Claim]) -> list[Shortage]:
    """Resources that the workers of a run lack now; nothing if they fit."""
    memory = [(claim, claim.memory_bytes) for claim in claims]
    # A run may not have touched yet what it has claimed, and others may use memory without a claim.
    unclaimed = max(0, supply.memory_bytes - sum(amount for _, amount in memory))
    free_gpus = _free(supply.gpus, (claim.gpus for claim in claims))
    of_each = [
        ("CPUs", needs.cpus, _num_free_cpus(supply, claims), supply.max_cpus,
         [(claim, len({*claim.cpus} & {*supply.cpus})) for claim in claims]),
        ("GPUs", needs.gpus, len(free_gpus), len(supply.gpus),
         [(claim, len({*claim.gpus} & {*supply.gpus})) for claim in claims]),
        ("memory", needs.memory_bytes, min(unclaimed, supply.available_bytes),
         supply.memory_bytes, memory),
    ]  # fmt: skip
    return [
        Shortage(
            what=what,
            each=each,
            workers=needs.workers,
            free=free,
            total=total,
            held=tuple((claim, amount) for claim, amount in held if amount),
        )
        for what, each, free, total, held in of_each
        if each * needs.workers > free
    ]


def divide(needs: Needs, supply: Supply, claims: Sequence[Claim]) -> tuple[Share, ...]:
    """The CPUs and GPUs of each worker: free ones, and once these are used up, others.

    Without shortages the shares are disjoint, and complete.
    """
    cpus = _free_first(supply.cpus, (claim.cpus for claim in claims))
    gpus = _free_first(supply.gpus, (claim.gpus for claim in claims))
    return tuple(
        Share(
            cpus=tuple(cpus[worker * needs.cpus : (worker + 1) * needs.cpus]),
            gpus=tuple(gpus[worker * needs.gpus : (worker + 1) * needs.gpus]),
        )
        for worker in range(needs.workers)
    )


class Slots:
    """Slots of a host's workers: numbers from 0. One decides the share of a worker, and its GPU."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}

    def choose(self, rank: int, taken: Collection[int]) -> int:
        """A free slot: that of the worker before in this rank, so that its GPU is the same, else
        the lowest.
        """
        slot = self._before.get(rank)
        if slot is None or slot in taken:
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
        self._before[rank] = slot
        return slot


def _num_free_cpus(supply: Supply, claims: Iterable[Claim]) -> int:
    free = _free(supply.cpus, (claim.cpus for claim in claims))
    # The limit of a container counts for all runs in it together.
    used = len(supply.cpus) - len(free)
    return max(0, min(len(free), supply.max_cpus - used))


def _free(every: Sequence[T], taken: Iterable[Iterable[T]]) -> list[T]:
    used = {each for some in taken for each in some}
    return [each for each in every if each not in used]


def _free_first(every: Sequence[T], taken: Iterable[Iterable[T]]) -> list[T]:
    free = _free(every, taken)
    return free + [each for each in every if each not in free]
