"""Row sums: each worker adds the gradient of its rows along the tree of shards.

In each round, every worker computes one shard. Once the gradient of a unit is there, each sends the
others their rows of it:

    round r     worker 0: shard rW     ══▶ all have exchanged ═▶ worker 0: its rows of shards rW …
                worker 1: shard rW + 1 ══▶     their rows     ═▶ worker 1: its rows of shards rW …

So in each round neighbouring leaves of the tree meet, and few partial sums are kept. A shard that
weighs nothing adds nothing, not even a zero. The count of shards that used a parameter is summed
with its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from holdfast.collectives.gradient_sets import Gradients
from holdfast.core.step import tree
from holdfast.worker.step.shard_work import dense
from holdfast.worker.step.sharded.held_rows import UnitRows


class Exchanges(Protocol):
    """Exchanges rows between workers, one exchange after the other."""

    def memory_for(self, size_bytes: int) -> torch.Tensor:
        """Memory for the rows of the next exchange: uint8[size_bytes]."""
        ...

    def begin(self, unit: int, sent: torch.Tensor) -> None:
        """Begin to send row `i` of `sent`, which are of a unit, to worker `i`."""
        ...

    def end(self, sent: torch.Tensor) -> Sequence[torch.Tensor]:
        """Wait for the rows that the workers send to this one; they are valid until the next
        exchange begins.

        Args:
            sent: Rows that this one sends.
        """
        ...


class RowSum:
    """A partial sum of the rows of one unit.

    Args:
        values: The rows of one shard, in memory that is used again.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self._is_kept = False

    def add(self, other: RowSum) -> None:
        """Add the sum of the sibling to the right."""
        if self._is_kept:
            self.values.add_(other.values)
        else:
            self.values = self.values + other.values
            self._is_kept = True

    def keep(self) -> None:
        """Move to memory of its own."""
        if not self._is_kept:
            self.values = self.values.clone()
            self._is_kept = True


class UnitSums:
    """The partial sums of the rows of one unit.

    Args:
        num_leaves: Leaves of the tree.
    """

    def __init__(self, num_leaves: int) -> None:
        self._num_leaves = num_leaves
        self.restart()

    def restart(self) -> None:
        """Forget all sums."""
        self._table = [tree.ABSENT] * tree.num_nodes(self._num_leaves)
        self._sums: dict[int, RowSum] = {}
        for padding in range(self._num_leaves, tree.span(self._num_leaves)):
            self._account(padding, tree.EMPTY)

    def enter(
        self, leaves: Sequence[int], weights: Sequence[float], rows: Sequence[torch.Tensor]
    ) -> None:
        """Account for leaves.

        Args:
            leaves: One leaf of each worker.
            weights: Their weights.
            rows: This worker's rows of their gradients, in memory that is used again.
        """
        for leaf, weight, values in zip(leaves, weights, rows, strict=True):
            if weight:
                self._sums[leaf] = RowSum(values)
            self._account(leaf, leaf if weight else tree.EMPTY)
        for each in self._sums.values():
            each.keep()

    def _account(self, leaf: int, number: int) -> None:
        tree.carry(self._table, tree.leaf(leaf, self._num_leaves), number, self._merge)

    def _merge(self, left: int, right: int) -> None:
        self._sums[left].add(self._sums.pop(right))

    @property
    def total(self) -> torch.Tensor:
        """The sum over all leaves, of which one weighs something at least."""
        (total,) = self._sums.values()
        return total.values


class RowSums:
    """The sums of one worker's rows of all units.

    Args:
        units: Cuts of the parameters of each unit.
        rank: This worker.
        num_workers: Workers that divide the model.
        num_leaves: Leaves of the tree, a multiple of the workers.
        exchanges: Exchanges rows.
    """

    def __init__(
        self,
        units: Sequence[UnitRows],
        rank: int,
        num_workers: int,
        num_leaves: int,
        exchanges: Exchanges,
    ) -> None:
        self._units = units
        self._rank = rank
        self._num_workers = num_workers
        self._exchanges = exchanges
        self._sums = [UnitSums(num_leaves) for _ in units]
        self._open: tuple[int, torch.Tensor] | None = None
        self._leaves: Sequence[int] = ()
        self._weights: Sequence[float] = ()
        self._missing: set[int] = set()

    def restart(self) -> None:
        """Begin a step."""
        for each in self._sums:
            each.restart()
        self._missing.clear()

    def begin_round(self, leaves: Sequence[int], weights: Sequence[float]) -> None:
        """Begin a round, before the backward pass.

        Args:
            leaves: The leaf of each worker.
            weights: The weight of each.
        """
        assert not self._missing, "a round of which units are missing"
        self._leaves = leaves
        self._weights = weights
        self._missing = set(range(len(self._units)))

    @property
    def is_open(self) -> bool:
        """True if units of the round are missing."""
        return bool(self._missing)

    def add(self, unit: int, gradients: Gradients, scale: float) -> None:
        """Begin to exchange the gradient of a unit, and complete the exchange before it.

        Args:
            unit: The unit.
            gradients: Gradients of all rows of its parameters.
            scale: Factor that they are multiplied by, unless it is 1.
        """
        self._missing.remove(unit)
        self._complete()
        rows = self._units[unit]
        memory = self._exchanges.memory_for(self._num_workers * rows.size * rows.dtype.itemsize)
        sent = memory.view(rows.dtype).view(self._num_workers, rows.size)
        pack(gradients, rows, sent)
        if scale != 1:
            sent[:, : rows.flags.start].mul_(scale)
        self._open = unit, sent
        self._exchanges.begin(unit, sent)

    def end_round(self) -> None:
        """Complete the round, after the backward pass."""
        assert not self._missing, "a backward pass that has left units out"
        self._complete()

    def _complete(self) -> None:
        if self._open is None:
            return
        unit, sent = self._open
        self._open = None
        self._sums[unit].enter(self._leaves, self._weights, self._exchanges.end(sent))

    def means(self, weight: float) -> dict[str, torch.Tensor | None]:
        """The mean gradient of what this worker holds of each parameter, flat; None where no shard
        used the parameter. Once a step.

        Args:
            weight: The weight of all shards.
        """
        means: dict[str, torch.Tensor | None] = {}
        for rows, sums in zip(self._units, self._sums, strict=True):
            total = sums.total
            uses = total[rows.flags].tolist()
            # Where weights add up to 1, except for rounding, the sum is the mean.
            if not math.isclose(weight, 1, rel_tol=1e-12):
                total[: rows.flags.start].mul_(1 / weight)
            entries = zip(rows.names, rows.places, rows.held[self._rank], uses, strict=True)
            for name, place, held, used in entries:
                means[name] = total[place : place + held.size] if used else None
        return means


def pack(gradients: Gradients, rows: UnitRows, sent: torch.Tensor) -> None:
    """Write what each worker holds of gradients, and which there are, to its row of `sent`."""
    flat = [None if each is None else dense(each).reshape(-1) for each in gradients]
    for target, held in zip(sent, rows.held, strict=True):
        for gradient, place, own in zip(flat, rows.places, held, strict=True):
            part = target[place : place + own.size]
            if gradient is None:
                part.zero_()
            else:
                part.copy_(gradient[own.start : own.end])
    sent[:, rows.flags] = torch.tensor([each is not None for each in gradients]).to(sent)
