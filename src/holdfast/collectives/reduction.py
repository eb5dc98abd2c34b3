"""Input and result of a reduction; see `exact`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The result of all shards of a step, apart from the gradient in the root slot.

    Attributes:
        weight: The sum of their weights.
        loss: The weighted mean of their losses.
        logged: Weighted means of what the shards logged, by name.
        used: Flags of parameters that had a gradient, then of buffers that changed, uint8[n].
        kept: The integer buffers of the first shard that was not empty.
        norm: The 2-norm of the mean gradient.
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
    """

    layout: SlotLayout
    partial_sum: Callable[[int, int], Slot]
    root: Slot
    tables: torch.Tensor
    norms: torch.Tensor
    times: torch.Tensor


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
