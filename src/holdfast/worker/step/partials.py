"""Partial sums: the gradients that one worker has summed in a step, and the slots they are in."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.collectives.slot import Slot
from holdfast.core.step import tree


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
        self.slots(left).add(self.slots(right))
        self._free.append(right)
