"""Terms: vectors of whole numbers, whose sum is exact in any order."""

from __future__ import annotations

from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float32]]


def term(size: int, rank: int) -> Vector:
    """The vector of a worker, float32[size]."""
    return ((np.arange(size) * 7 + rank * 13) % 101).astype(np.float32)


def num_wrong(result: Vector, workers: int) -> int:
    """Elements of a result that are not the sum of the vectors of all workers."""
    expected = sum((term(len(result), rank) for rank in range(workers)), np.float32(0))
    return int((result != expected).sum())
