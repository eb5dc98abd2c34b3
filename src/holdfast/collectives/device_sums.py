"""Device sums: partial sums are added on the device of each worker, which reads those of others.

    device   sets ─▶ publish ─┐        ┌─▶ add up the own share ─┐         ┌─▶ collect all shares
    host                      └─ wait ─┤ PARTIALS                └─ wait ──┤ REDUCED

Workers read each other in one of two ways, with the same bits:

    mapped   from the memory of the other device, which each worker maps; only what does not fit
             into the slots there goes through the arena
    staged   through slots and root of the arena, where a device copies to and from

A worker writes only to its own memory and to its own slots of the arena. It waits for its own
device before it meets the others at a barrier, and no device waits for another one of its host. So
if a worker is lost, the work of all others ends. `device_exchange` connects the devices of several
hosts.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from holdfast.arena.device.mapped import MappedMemory
from holdfast.arena.layout import ITEM_BYTES
from holdfast.arena.tensors import DTYPES
from holdfast.collectives.device_queue import DeviceQueue
from holdfast.collectives.gradient_sets import GradientSet
from holdfast.collectives.group import Group
from holdfast.collectives.reduction import (
    DeviceMessages,
    LocalSums,
    Place,
    ReductionMemory,
    share,
)
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.core.step import tree

PIECE_BYTES: Final = 16 << 20
"""Bytes that are added at a time: this bounds the memory for sums of others."""


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of a slot, bytes, whose elements have one dtype."""

    dtype: torch.dtype
    start: int
    end: int


class _Way(enum.Enum):
    """Memory from which a worker gets the shares of others."""

    LONE = enum.auto()  # its share is all of the mean
    MAPPED = enum.auto()
    STAGED = enum.auto()


class DeviceSums:
    """The share of one worker.

    Args:
        group: The workers.
        memory: Memory in the arena that the workers of its host share.
        device: Device that adds.
        mapped: Memory of the devices that workers map; None if they do not.
        messages: Connects the devices of several hosts; None to add their sums in the arena.
        queue: Work of the device; None for that of this thread.

    Attributes:
        messages: The argument.
        root: The mean gradient, once it is collected, on the device.
    """

    def __init__(
        self,
        group: Group,
        memory: ReductionMemory,
        device: torch.device,
        mapped: MappedMemory | None,
        messages: DeviceMessages | None = None,
        queue: DeviceQueue | None = None,
    ) -> None:
        self._group = group
        self._rank = group.rank
        self._layout = memory.layout
        self._arena_slot = memory.partial_sum
        self._arena_root = memory.root
        self._device = device
        self._mapped = mapped
        self.messages = messages
        self._queue = queue or DeviceQueue(device)
        size_bytes = memory.layout.layout.size_bytes
        self.root = Slot(torch.zeros(size_bytes, dtype=torch.uint8, device=device), memory.layout)
        slots = [] if mapped is None else mapped.slots
        self._own_slots = [Slot(each, memory.layout) for each in slots]
        self._num_mapped = 0
        self._ranges: Mapping[int, list[_Range]] = {}
        self._way = _Way.LONE

    def assign(self, shares: Mapping[int, Sequence[int]]) -> None:
        """Implements `Sums.assign`."""
        is_readable = self._mapped is not None and self._mapped.is_readable
        self._num_mapped = len(self._own_slots) if is_readable else 0
        self._ranges = {rank: _merged(self._layout, own) for rank, own in shares.items()}
        sizes = [_size(ranges) for ranges in self._ranges.values()]
        # Noted here: a worker may collect shares of a generation when it has entered the next.
        if self._group.network is not None and self.messages is None:
            self._way = _Way.STAGED  # sums of several hosts are in the arena of each
        elif len(shares) == 1:
            self._way = _Way.LONE
        # A worker that serves several lanes has more than an even share.
        elif self._mapped is None or not is_readable or max(sizes) > len(self._mapped.share):
            self._way = _Way.STAGED
        else:
            self._way = _Way.MAPPED

    def publish(self, table: Sequence[int], sets: Callable[[int], GradientSet]) -> list[int]:
        """Show the partial sums of this worker to the others; returns the slot of each node.

        Args:
            table: The set of each node; see `core.step.tree`.
            sets: The sets by number.
        """
        slots = tree.numbered(table)
        held = [(slot, sets(n)) for slot, n in zip(slots, table, strict=True) if n >= 0]
        for slot, found in held:
            self._queue.run(partial(found.write_sums, self._slot(slot)))
        # The others read the slots as soon as this worker has arrived at the barrier.
        self._queue.wait()
        for slot, found in held:
            found.write_rest(self._arena_slot(self._rank, slot))
        return slots

    def _slot(self, number: int) -> Slot:
        """An own slot: mapped by the others as far as there are any, else in the arena."""
        if number < self._num_mapped:
            return self._own_slots[number]
        return self._arena_slot(self._rank, number)

    def add_up(self, term: tree.Term, weight: float) -> None:
        """Implements `Sums.add_up`."""
        self._queue.run(partial(self._add_up, term, weight))
        # The others read the share as soon as this worker has arrived at the barrier.
        self._queue.wait()

    def _add_up(self, term: tree.Term, weight: float) -> None:
        for piece in _pieces(self._ranges[self._rank]):
            self._write_mean(piece, self._sum(term, piece), weight)
        self._show_share()

    def _write_mean(self, piece: _Range, total: torch.Tensor, weight: float) -> None:
        # Where weights add up to 1, except for rounding, the sum is the mean.
        if not math.isclose(weight, 1, rel_tol=1e-12):
            total = total * (1 / weight)
        self.root.memory[piece.start : piece.end].copy_(total.view(torch.uint8))

    def show_share(self) -> None:
        """Show the share of this worker, which is complete in the root, to the others."""
        self._queue.run(self._show_share)
        self._queue.wait()

    def _show_share(self) -> None:
        at = 0
        for each in self._ranges[self._rank] if self._way is not _Way.LONE else ():
            source = self.root.memory[each.start : each.end]
            if self._way is _Way.STAGED:
                target = self._arena_root.memory[each.start : each.end]
            else:
                assert self._mapped is not None
                target = self._mapped.share[at : at + len(source)]
                at += len(source)
            target.copy_(source, non_blocking=True)

    def collect(self) -> None:
        """Implements `Sums.collect`. The device does it before all that it is given later."""
        self._queue.run(self._collect)

    def _collect(self) -> None:
        if self._way is _Way.STAGED:
            end = self._layout.sums_bytes
            self.root.memory[:end].copy_(self._arena_root.memory[:end], non_blocking=True)
        for rank, ranges in self._ranges.items() if self._way is _Way.MAPPED else ():
            at = 0
            for each in ranges if rank != self._rank else ():
                assert self._mapped is not None
                target = self.root.memory[each.start : each.end]
                self._mapped.read_share(rank, at, target)
                at += len(target)

    def new_cell(self, blocks: Sequence[int]) -> torch.Tensor:
        """Memory on the device for a sum of a cell, given by its blocks: uint8[n]."""
        return torch.empty_like(self.mean_of_cell(blocks))

    def mean_of_cell(self, blocks: Sequence[int]) -> torch.Tensor:
        """Memory on the device of the mean of a cell: uint8[n]."""
        start = _block(self._layout, blocks[0]).start
        return self.root.memory[start : _block(self._layout, blocks[-1]).end]

    def sum_of_cell(self, term: tree.Term, blocks: Sequence[int]) -> torch.Tensor:
        """A cell of the sum of partial sums of this host, on the device: uint8[n]."""
        cell = self.new_cell(blocks)

        def add() -> None:
            for piece, of_cell in _pieces_of_cell(self._layout, blocks):
                cell[of_cell].copy_(self._sum(term, piece).view(torch.uint8))

        self._queue.run(add)
        return cell

    def add_cell(
        self,
        term: tree.Term,
        weight: float,
        blocks: Sequence[int],
        sums: Mapping[Place, torch.Tensor],
    ) -> None:
        """Compute the mean of a cell, in the root.

        Args:
            term: Term of the whole sum.
            weight: Weight of the whole sum.
            blocks: Blocks of the cell.
            sums: The cell of each partial sum of `term`.
        """

        def add() -> None:
            for piece, of_cell in _pieces_of_cell(self._layout, blocks):
                elements = {place: each[of_cell].view(piece.dtype) for place, each in sums.items()}
                total = _added(term, elements.__getitem__)
                self._write_mean(piece, total, weight)

        self._queue.run(add)

    def of_terms(self, terms: Mapping[int, tree.Term | None], indices: Sequence[int]) -> LocalSums:
        """Implements `Sums.of_terms`; all blocks are added at once."""
        sums: dict[tuple[int, int], torch.Tensor] = {}
        self._queue.run(partial(self._add_terms, terms, indices, sums))
        self._queue.wait()
        return lambda node, index: sums[node, index]

    def _add_terms(
        self,
        terms: Mapping[int, tree.Term | None],
        indices: Sequence[int],
        found: dict[tuple[int, int], torch.Tensor],
    ) -> None:
        for node, term in terms.items():
            for index in indices if term is not None else ():
                assert term is not None
                total = self._sum(term, _block(self._layout, index))
                found[node, index] = total.to("cpu", non_blocking=True)

    def _sum(self, term: tree.Term, piece: _Range) -> torch.Tensor:
        """The elements of a piece of a term, on the device; those of an own slot in place."""
        return _added(term, partial(self._elements, piece))

    def _elements(self, piece: _Range, place: Place) -> torch.Tensor:
        rank, slot = place
        if slot >= self._num_mapped:
            source = self._arena_slot(rank, slot).memory[piece.start : piece.end]
            elements = source.to(self._device, non_blocking=True)
        elif rank == self._rank:
            elements = self._own_slots[slot].memory[piece.start : piece.end]
        else:
            assert self._mapped is not None, "a mapped slot of another worker"
            size = piece.end - piece.start
            elements = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._mapped.read_slot(rank, slot, piece.start, elements)
        return elements.view(piece.dtype)


def _added(term: tree.Term, elements: Callable[[Place], torch.Tensor]) -> torch.Tensor:
    """The sum of a term, from the elements of its partial sums."""
    if isinstance(term, tree.Add):
        # Every addition of the tree has its left sibling first.
        return _added(term.left, elements) + _added(term.right, elements)
    return elements((term.rank, term.slot))


def _block(layout: SlotLayout, index: int) -> _Range:
    """The range of a block."""
    at, start, end = layout.blocks[index]
    name, first, _, _ = layout.dtype_ranges[at]
    size = ITEM_BYTES[name]
    return _Range(DTYPES[name], first + size * start, first + size * end)


def _merged(layout: SlotLayout, indices: Sequence[int]) -> list[_Range]:
    """The ranges of some blocks, in order; neighbours of one dtype are one range."""
    ranges: list[_Range] = []
    for index in indices:
        each = _block(layout, index)
        if ranges and (ranges[-1].end, ranges[-1].dtype) == (each.start, each.dtype):
            each = replace(each, start=ranges.pop().start)
        ranges.append(each)
    return ranges


def _pieces(ranges: Sequence[_Range]) -> Iterator[_Range]:
    """The ranges in pieces of up to PIECE_BYTES."""
    for each in ranges:
        for start in range(each.start, each.end, PIECE_BYTES):
            yield replace(each, start=start, end=min(start + PIECE_BYTES, each.end))


def _pieces_of_cell(layout: SlotLayout, blocks: Sequence[int]) -> Iterator[tuple[_Range, slice]]:
    """The pieces of a cell, each with its place in the cell."""
    ranges = _merged(layout, blocks)
    first = ranges[0].start
    for each in _pieces(ranges):
        yield each, slice(each.start - first, each.end - first)


def _size(ranges: Sequence[_Range]) -> int:
    return sum(each.end - each.start for each in ranges)


def largest_share(layout: SlotLayout, workers: int) -> int:
    """The size of the largest share that one of up to so many workers can have, bytes, where each
    serves one lane.

    The share of a lone worker does not count, as no other one reads it.
    """
    if workers == 1:
        return 0
    blocks = [_block(layout, index) for index in range(len(layout.blocks))]
    total = _size(blocks)
    # A lane has a cell of each host: its part of all, and up to one block more.
    of_lane = total // 2 + workers // 2 * max(_size([each]) for each in blocks)
    of_host = max(
        _size(blocks[own.start : own.stop])
        for among in range(2, workers + 1)
        for own in (share(len(blocks), place, among) for place in range(among))
    )
    return max(of_host, min(total, of_lane))
