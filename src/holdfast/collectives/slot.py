"""Slot: the memory of one partial sum, which is what a set of shards contributes to a step.

A partial sum holds, for its shards together,

    sums    weight x gradient, weight x floating-point buffer      (added along the tree)
    stats   weight, weight x loss, weight x logged values          (added along the tree)
    used    which parameters had a gradient, which buffers changed (either did)
    kept    integer buffers, names of the logged values            (those of the first shard)

All of it is in one flat layout, so a partial sum is a range of bytes that any worker of the host
can read. The division by the whole weight comes last, at the root of the tree. Complex numbers are
pairs of real ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from holdfast.arena.layout import ALIGNMENT, ITEM_BYTES, Field, Layout
from holdfast.arena.tensors import (
    DTYPES,
    as_real,
    copy_past_cache,
    field_of,
    flattened,
    pack_by_dtype,
    view,
    write_names,
)
from holdfast.errors import JobError

WEIGHT: Final = 0
LOSS: Final = 1
LOGGED: Final = 2
NUM_STATS: Final = 16
"""Length of `stats`: the weight, the loss, and up to 14 logged values."""
NAMES_BYTES: Final = 1024
"""The size of the names of the logged values, as JSON."""
BLOCK: Final = 1 << 17
"""Elements that are summed at a time: few enough to stay in a core's cache."""


class SlotLayout:
    """The layout of every slot of a run.

    Args:
        parameters: The trained parameters by name: those that get a gradient.
        buffers: The model's buffers by name.

    Attributes:
        gradient_bytes: Size of all gradients; averaged buffers follow.
        sums_bytes: Size of both.
        dtype_ranges: Ranges of equal dtype in `sums`, as `(dtype, start, end, is_gradient)`, bytes.
        blocks: The ranges cut into pieces of up to BLOCK elements, as `(range, start, end)`,
            elements; the same for every world size, and each aligned. A long tensor has blocks of
            its own.
        num_gradient_blocks: Number of blocks of gradients, which come first.
        kept_ranges: Ranges of integer buffers of equal dtype, as `(start, end)`, bytes.
        gradient_spans: The place of each parameter's gradient in `sums`, as `(range, start, end)`,
            elements, in the order of `parameter_names`.
        gradient_shapes: The shape of each, as real numbers, its dimensions in the order in which
            they lie in memory.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
    ) -> None:
        # In the order that they have in a replica.
        by_dtype = pack_by_dtype(field_of(name, each) for name, each in buffers.items()).entries
        ordered = {each.name: buffers[each.name] for each in by_dtype}
        averaged = {name: b for name, b in ordered.items() if as_real(b).is_floating_point()}
        integers = {name: buffer for name, buffer in ordered.items() if name not in averaged}
        self.parameter_names = tuple(parameters)
        self.buffer_names = tuple(averaged)
        added = {f"gradient.{name}": p for name, p in parameters.items()}
        added |= {f"buffer.{name}": b for name, b in averaged.items()}
        self.complex_names = [name for name, tensor in added.items() if tensor.is_complex()]
        fields = [field_of(name, as_real(tensor.detach())) for name, tensor in added.items()]
        gradients = pack_by_dtype(fields[: len(parameters)])
        averages = Layout.pack(fields[len(parameters) :])
        self.gradient_bytes = gradients.size_bytes
        self.sums_bytes = gradients.size_bytes + averages.size_bytes
        # Gradients first, then buffers: so `sums` is one range at the start, and the blocks of
        # gradients are the first blocks.
        self.layout = Layout.pack(
            [
                *gradients.entries,
                *averages.entries,
                *(field_of(f"kept.{name}", buffer) for name, buffer in integers.items()),
                Field("used", "U8", (len(parameters) + len(averaged),)),
                Field("stats", "F64", (NUM_STATS,)),
                Field("names", "U8", (NAMES_BYTES,)),
            ]
        )
        # Offsets of averages are relative to their own layout, which follows that of gradients.
        self.dtype_ranges = [(*each, True) for each in gradients.dtype_ranges()] + [
            (dtype, start + self.gradient_bytes, end + self.gradient_bytes, False)
            for dtype, start, end in averages.dtype_ranges()
        ]
        of_kept = [each for each in self.layout.entries if each.name.startswith("kept.")]
        self.kept_ranges = [range_[1:] for range_ in Layout(tuple(of_kept), 0).dtype_ranges()]
        spans = {
            entry.name: (at, (entry.offset - start) // size, (entry.end - start) // size)
            for at, (dtype, start, end, _) in enumerate(self.dtype_ranges)
            for size in [ITEM_BYTES[dtype]]
            for entry in self.layout.entries
            if entry.dtype == dtype and start <= entry.offset and entry.end <= end
        }
        self.gradient_spans = [spans[f"gradient.{name}"] for name in parameters]
        self.gradient_shapes = [_shape_in_memory(each) for each in fields[: len(parameters)]]
        self.blocks = [
            (at, start, end)
            for at, (dtype, first, last, _) in enumerate(self.dtype_ranges)
            for start, end in _cut(
                (last - first) // ITEM_BYTES[dtype],
                [span[1:] for span in spans.values() if span[0] == at],
                ALIGNMENT // ITEM_BYTES[dtype],
            )
        ]
        self.num_gradient_blocks = sum(self.dtype_ranges[at][3] for at, _, _ in self.blocks)

    def sums_in(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Flat views of memory with a layout like this one, one a range of equal dtype."""
        return [memory[start:end].view(DTYPES[dtype]) for dtype, start, end, _ in self.dtype_ranges]


def _shape_in_memory(field: Field) -> tuple[int, ...]:
    """Dimensions from the one with the longest stride to that with the shortest."""
    if not field.strides:
        return field.shape
    order = sorted(range(len(field.shape)), key=lambda at: -field.strides[at])
    return tuple(field.shape[at] for at in order)


def _cut(count: int, spans: Sequence[tuple[int, int]], aligned: int) -> list[tuple[int, int]]:
    """Cut `count` elements into blocks, at both ends of every span that is longer than a tenth of
    a block: so a block is of one such tensor, or of many small ones.

    Args:
        count: Elements of the range, padding included.
        spans: The ranges of its tensors, `(start, end)`, elements; each start is aligned.
        aligned: Elements that take `ALIGNMENT` bytes. Every block starts at a multiple of it and
            includes the padding after its last tensor: kernels such as MKL's dot product round
            by alignment, and one block may be read from a slot or from aligned scratch memory.
    """
    # A tensor that is long enough to matter gets borders of its own; small ones share blocks.
    borders = {0, count}
    for start, end in spans:
        if end - start > BLOCK // 10:
            borders |= {start, -(-end // aligned) * aligned}
    return [
        (start, min(start + BLOCK, last))
        for first, last in itertools.pairwise(sorted(borders))
        for start in range(first, last, BLOCK)
    ]


class Slot:
    """Views of one slot's memory, uint8[layout.size_bytes].

    Attributes:
        memory: All of it.
        gradients: One view a trained parameter, in the order of `parameter_names`.
        buffers: One view a floating-point buffer, in the order of `buffer_names`.
        averages: A flat view of the bytes of all floating-point buffers.
        kept: Flat views of bytes, one a range of integer buffers.
        sums: Flat views, one a range of equal dtype.
        blocks: Flat views, one a block.
    """

    def __init__(self, memory: torch.Tensor, layout: SlotLayout) -> None:
        self.memory = memory
        at = {entry.name: view(memory, entry) for entry in layout.layout.entries}
        at |= {name: torch.view_as_complex(at[name]) for name in layout.complex_names}
        self.gradients = [at[f"gradient.{name}"] for name in layout.parameter_names]
        self._sizes = [gradient.numel() for gradient in self.gradients]
        self.buffers = [at[f"buffer.{name}"] for name in layout.buffer_names]
        self.averages = memory[layout.gradient_bytes : layout.sums_bytes]
        self.kept = [memory[start:end] for start, end in layout.kept_ranges]
        self.used = at["used"]
        self.stats = at["stats"]
        self.names = at["names"]
        self.sums = layout.sums_in(memory)
        self.blocks = [self.sums[at][start:end] for at, start, end in layout.blocks]
        self._num_gradient_blocks = layout.num_gradient_blocks

    def norm(self) -> float:
        """The 2-norm of the gradient in this slot."""
        squares = torch.zeros(len(self.blocks), dtype=torch.float64)
        for index, block in enumerate(self.blocks[: self._num_gradient_blocks]):
            squares[index] = square(block)
        return math.sqrt(float(squares.sum()))

    def write_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Write what one shard adds to the gradient, by parameter; None is zero."""
        targets = []
        sources = []
        gpus = set()
        # One pass sorts the gradients by the cheapest way to copy them.
        for target, size, gradient in zip(self.gradients, self._sizes, gradients, strict=True):
            if gradient is None:
                target.zero_()
            elif gradient.device != target.device:
                target.copy_(gradient, non_blocking=True)
                gpus.add(gradient.device)
            elif gradient.is_cpu and size > BLOCK:
                copy_past_cache(target, flattened(gradient, target))
            else:
                targets.append(target)
                sources.append(gradient)
        # Small ones together, in one call.
        if targets:
            torch._foreach_copy_(targets, sources)
        # Copies from GPUs were queued above; the slot is whole once they are done.
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()

    def write_used(self, used: Sequence[bool]) -> None:
        """Write which parameters had a gradient, and which averaged buffers changed."""
        if used:  # an empty buffer is refused
            self.used.copy_(torch.frombuffer(bytearray(used), dtype=torch.uint8))

    def write_logged(self, logged: Mapping[str, float], weight: float) -> None:
        """Write what one shard has logged, multiplied by its `weight`.

        Raises:
            JobError: The names are too long.
        """
        names = sorted(logged)
        write_names(self.names, names)
        for column, name in enumerate(names, start=LOGGED):
            self.stats[column] = weight * logged[name] if weight else 0.0  # 0 x NaN is NaN


def square(block: torch.Tensor) -> float:
    """The sum of squares of one block: in float32 as far as that goes, else in float64.

    Args:
        block: Flat, and aligned to ALIGNMENT bytes: the bits of a dot product depend on that.
    """
    assert block.data_ptr() % ALIGNMENT == 0, "a dot product of unaligned memory"
    if block.dtype == torch.float32:
        result = float(torch.dot(block, block))
        if math.isfinite(result):
            return result
    return float(block.double().square().sum())


def check_names(*, are_equal: bool) -> None:
    """Raises: JobError: Two shards have logged different names."""
    if not are_equal:
        raise JobError(
            "two shards of one step have logged different names: "
            "every shard of a step must log the same values"
        )
