"""Shard work: the shard that a worker computes, and the partial sums of those that it has computed.

    begin_shard ─▶ CurrentShard ─▶ end_shard ─▶ PartialSums: a slot for each node that is complete

Also the checks of what user code gives for a shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.collectives.slot import LOGGED, NUM_STATS, Slot
from holdfast.core.step import tree
from holdfast.errors import JobError


@dataclass(slots=True, kw_only=True)
class CurrentShard:
    """A shard from `begin_shard` to `end_shard`.

    Attributes:
        leaf: The leaf of the reduction tree that it fills.
        number, slot: Slot that its gradient goes to.
        lends_gradients: True if its gradients are lent, not copied; see `collectives.lending`.
        fired: True for each parameter that has a gradient.
        verify_only: True if it is assigned to another worker, and this one only verifies it.
        weight: None until `backward` is called.
        discarded: True if its step was restarted meanwhile.
        raw_gradients: The gradients as autograd gives them, if they are verified.
        logged: Means over the shard by name.
    """

    leaf: int
    number: int
    slot: Slot
    lends_gradients: bool
    fired: list[bool]
    verify_only: bool
    weight: float | None = None
    discarded: bool = False
    raw_gradients: list[torch.Tensor] = field(default_factory=list)
    logged: dict[str, float] = field(default_factory=dict)


class PartialSums:
    """The partial sums of one worker.

    Args:
        slots: Its slots, by number.
        num_slots: Number of its slots.
        num_leaves: Leaves of the tree.

    Attributes:
        slots: The argument.
        table: The slot of each node, or ABSENT or EMPTY; see `core.step.tree`.
    """

    def __init__(self, slots: Callable[[int], Slot], num_slots: int, num_leaves: int) -> None:
        self.slots = slots
        self._num_leaves = num_leaves
        self.table = [tree.ABSENT] * tree.num_nodes(num_leaves)
        self._free = list(reversed(range(num_slots)))

    @property
    def is_empty(self) -> bool:
        """True if no leaf is accounted for."""
        return all(entry == tree.ABSENT for entry in self.table)

    @property
    def has_capacity(self) -> bool:
        """True if there are enough slots for any range of leaves."""
        return len(self._free) >= tree.max_partials(self._num_leaves)

    def take_slot(self) -> int:
        """Reserve a slot for one more leaf."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Return a slot that was reserved and is not used."""
        self._free.append(slot)

    def enter(self, leaf: int, slot: int) -> None:
        """Account for a leaf whose sum is in `slot`, or which is EMPTY; add siblings."""
        tree.carry(self.table, tree.leaf(leaf, self._num_leaves), slot, self._merge)

    def _merge(self, left: int, right: int) -> None:
        # The left slot takes the sum; the right one is free for the next shard.
        self.slots(left).add(self.slots(right))
        self._free.append(right)


def check_loss(loss: object) -> None:
    """Raises: JobError: `loss` is not a scalar that depends on the model."""
    if not isinstance(loss, torch.Tensor):
        raise JobError(
            f"the loss must be a tensor that depends on the model's parameters, not a "
            f"{type(loss).__name__}; remove .item() or float()"
        )
    if loss.dim() != 0 or not loss.requires_grad:
        raise JobError(
            f"the loss must be a scalar that depends on the model's parameters, not a tensor "
            f"of shape {list(loss.shape)} with requires_grad={loss.requires_grad}; "
            "take the mean over the shard's samples"
        )


def checked_weight(weight: Any) -> float:
    """The weight that user code gives a shard.

    Raises:
        JobError: It is negative, or no number.
    """
    try:
        value = float(weight)
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise JobError(f"session.backward needs a weight that is a number from 0, not {weight!r}")
    return value


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient that autograd has computed, dense and with all bits of it in memory."""
    gradient = parameter.grad
    if gradient is None:
        return None
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient.resolve_conj()


def checked_number(name: str, value: Any) -> float:
    """A value that user code logs.

    Raises:
        JobError: It is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise JobError(
            f"session.log({name}=…) needs one number, the mean over the shard's samples: {error}"
        ) from None


def check_logged_count(logged: Mapping[str, float]) -> None:
    """Raises: JobError: more is logged than fits."""
    if len(logged) > NUM_STATS - LOGGED:
        raise JobError(f"a step can log {NUM_STATS - LOGGED} values, not {len(logged)}")
