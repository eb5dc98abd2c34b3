"""Rows: which elements of a parameter each worker holds.

A parameter is cut along its first dimension. A worker also holds the few elements around its rows
up to the next multiples of `STRIDE`:

    parameter       ████████████████████████████████████
    rows of each    00000000000000│11111111111111│222222
    worker 1 holds             ▒▒▒1111111111111111▒

Kernels of optimizers may round the last elements of a tensor unlike the others, so no cut may be
within a vector. What several workers hold, each of them updates alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from holdfast.arena.layout import ALIGNMENT

STRIDE: Final = 64
"""Elements that cuts are multiples of; no vector of a processor has more."""


@dataclass(frozen=True, slots=True)
class Held:
    """The elements of a parameter that a worker holds.

    Attributes:
        rows_start, rows_end: Its rows.
        rows_padded: Size of the most rows that any worker has.
        start, end: All that it holds.
    """

    rows_start: int
    rows_end: int
    rows_padded: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def memory(self) -> int:
        """The elements that it needs memory for: what it holds, and the padding of its rows."""
        return max(self.size, self.rows_start - self.start + self.rows_padded) if self.size else 0


def held(shape: Sequence[int], rank: int, num_workers: int) -> Held:
    """The elements that a worker holds, whose rows are those of `torch.chunk`: the last workers may
    have fewer, or none.

    Args:
        shape: Shape of the parameter.
        rank: The worker.
        num_workers: Workers that divide it.
    """
    width = math.prod(shape[1:])
    most = -(-shape[0] // num_workers)
    first = min(rank * most, shape[0])
    start = first * width
    end = min(first + most, shape[0]) * width
    if start == end:
        return Held(start, end, most * width, start, end)
    outer = start // STRIDE * STRIDE, min(-(-end // STRIDE) * STRIDE, shape[0] * width)
    return Held(start, end, most * width, *outer)


class UnitRows:
    """The elements of a unit's parameters that each worker holds, one parameter after the other,
    each aligned.

    Args:
        shapes: The shape of each parameter by name.
        dtype: Their dtype.
        num_workers: Workers that divide them.

    Attributes:
        names: The parameters.
        dtype: The argument.
        held: Rows that each worker holds of each parameter.
        places: Start of each parameter, elements.
        flags: Place of the count of shards that used each parameter, elements.
        size: Size of the part of each worker, elements.
    """

    def __init__(
        self, shapes: Mapping[str, torch.Size], dtype: torch.dtype, num_workers: int
    ) -> None:
        self.names = tuple(shapes)
        self.dtype = dtype
        self.held: Sequence[Sequence[Held]] = [
            [held(shape, rank, num_workers) for shape in shapes.values()]
            for rank in range(num_workers)
        ]
        aligned = ALIGNMENT // dtype.itemsize
        self.places = []
        end = 0
        for each in zip(*self.held, strict=True):
            self.places.append(end)
            end += -(-max(part.size for part in each) // aligned) * aligned
        self.flags = slice(end, end + len(shapes))
        self.size = end + -(-len(shapes) // aligned) * aligned


def most_exchanged(parameters: Mapping[str, torch.Tensor], num_workers: int) -> int:
    """The most that a worker hands to others at a time, bytes, whatever the units are.

    Args:
        parameters: The trained parameters by name, whole.
        num_workers: Workers that divide them.
    """
    of_dtype: dict[torch.dtype, dict[str, torch.Size]] = {}
    # Parameters without dimensions are refused later.
    for name, parameter in ((n, p) for n, p in parameters.items() if p.dim()):
        of_dtype.setdefault(parameter.dtype, {})[name] = parameter.shape
    rows = (UnitRows(shapes, dtype, num_workers) for dtype, shapes in of_dtype.items())
    return max((num_workers * each.size * each.dtype.itemsize for each in rows), default=0)
