"""Input and result of a reduction; see `exact`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from holdfast.collectives.compression.feedback import ErrorMemory
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.errors import JobError

Place = tuple[int, int]
"""A partial sum: its rank and slot."""
LocalSums = Callable[[int, int], torch.Tensor]
"""Gives one block of the sum of a node, in memory of the host, by node and block."""

Message = tuple[int, torch.Tensor]
"""The rank of another worker, and contiguous memory on the own device: uint8[n]."""


class PlansDiffer(Exception):
    """Workers have followed different plans in one step, so shards are missing."""


class DeviceMessages(Protocol):
    """Moves messages between the devices of the workers of several hosts."""

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], what: str) -> None:
        """Send and receive; each worker receives messages in the order in which they were sent.

        Args:
            sends: Messages to send.
            receives: Memory for the messages of others.
            what: Subject of the wait, in words.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        ...


class Sums(Protocol):
    """Adds the partial sums of all workers of a host; `exact.TreeReducer` says when."""

    def assign(self, shares: Mapping[int, Sequence[int]]) -> None:
        """Divide the gradient from now on.

        Args:
            shares: Blocks of each worker of this host, which together are all.
        """
        ...

    def add_up(self, term: tree.Term, weight: float) -> None:
        """Compute this worker's share of the mean.

        Args:
            term: Term of the whole sum; its partial sums are complete.
            weight: Weight of the whole sum.
        """
        ...

    def collect(self) -> None:
        """Get the shares of the other workers, which are complete."""
        ...

    def of_terms(self, terms: Mapping[int, tree.Term | None], indices: Sequence[int]) -> LocalSums:
        """Sums of partial sums of this host, to be added to those of others.

        Args:
            terms: Term of each node; None for one that weighs nothing.
            indices: Blocks that will be asked for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The result of all shards of a step, apart from the gradient in the root slot.

    Attributes:
        weight: The sum of their weights.
        loss: The weighted mean of their losses.
        logged: Weighted means of what the shards logged, by name.
        used: Flags of parameters that had a gradient, then of buffers that changed, uint8[n].
        kept: The integer buffers of the first shard that was not empty.
        norm: The 2-norm of the mean gradient; NaN where a device has the gradient.
        votes: One vote per member, in member order; see `worker.step.commit`.
        replica_digests: One digest of a replica per member, in member order.
        step_times: Times of the step, one per member, in member order.
    """

    weight: float
    loss: float
    logged: dict[str, float]
    used: torch.Tensor
    kept: Sequence[torch.Tensor]
    norm: float
    votes: tuple[int, ...]
    replica_digests: tuple[int, ...]
    step_times: tuple[StepTimes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionMemory:
    """Memory that the reducers of one host share.

    Attributes:
        layout: The layout of all slots.
        partial_sum: Gives the slot to read a member's partial sum from, by rank and slot number.
        root: The slot of the reduced gradient: one for the host.
        tables: int64[world_size, num_nodes]; each worker writes its own row.
        norms: float64[num_blocks]; each worker writes its own blocks.
        times: int64[world_size, fields of `StepTimes`]; each worker writes its own row.
        errors: Errors that compression has kept from the others; see `compression.feedback`. None
            if nothing is compressed.
    """

    layout: SlotLayout
    partial_sum: Callable[[int, int], Slot]
    root: Slot
    tables: torch.Tensor
    norms: torch.Tensor
    times: torch.Tensor
    errors: ErrorMemory | None = None


def share(num_blocks: int, place: int, among: int) -> range:
    """The blocks of one of several workers of a host, by its place among them."""
    # The ends of one share are the begin of the next, so together they are all blocks, once.
    return range(num_blocks * place // among, num_blocks * (place + 1) // among)


def check_summed(step: int, term: tree.Term | None) -> tree.Term:
    """The term of a step.

    Raises:
        JobError: No shard has a gradient.
    """
    if term is None:
        raise JobError(
            f"no shard of step {step + 1} called session.backward(loss) with a weight above 0, "
            "so there is no gradient; call it once for every shard that the loop yields, and "
            "leave samples in every batch"
        )
    return term


def check_weight(step: int, weight: float) -> None:
    """Raises: JobError: The weights of a step's shards do not add up to a number above 0."""
    if not (math.isfinite(weight) and weight > 0):
        raise JobError(f"the shards of step {step + 1} weigh {weight} in all; it must be above 0")
