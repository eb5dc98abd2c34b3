"""Loaded samples: a batch, and the number of samples in it.

A collate function may leave samples out, such as damaged ones, so they are counted in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.data.dataset import Batch, Collate, Dataset, MapStyle, stacked
from holdfast.data.permutation import Indices


@dataclass(frozen=True, slots=True)
class Loaded:
    """The samples of one work item in one step.

    Attributes:
        batch: The batch that the data set returned.
        size: Number of samples in it.
    """

    batch: Batch
    size: int


def load(dataset: Dataset, indices: Indices, generator: torch.Generator) -> Loaded | None:
    """The samples at `indices`, at least one; None if none of them is left."""
    if isinstance(dataset, MapStyle):
        return collated(dataset.rows(indices, generator), dataset.collate)
    return collated([*indices], lambda at: dataset.batch(np.array(at), generator) if at else None)


def collated(rows: list[Any], collate: Collate) -> Loaded | None:
    """The batch of some samples; None if none of them is left.

    A batch whose tensors and lists all have the same m rows, fewer than there are samples, holds m
    samples, if `collate` makes m rows of the samples one by one, too. Any other batch holds the
    samples that are not None: it may be packed, `[1, tokens]`, or consist of graphs.
    """
    try:
        batch = collate(rows)
    except (IndexError, ValueError, RuntimeError) as error:
        # A function that leaves all of them out fails as it does with none.
        if collate is stacked or repr(error) != _error_without_rows(collate):
            raise
        return None
    size = _num_rows(batch)
    packed = 0 <= size < len(rows) and size != sum(_rows_alone(row, collate) for row in rows)
    if packed or not 0 <= size <= len(rows):
        size = sum(row is not None for row in rows) or len(rows)
    return Loaded(batch, size) if size and batch is not None else None


def _error_without_rows(collate: Collate) -> str:
    try:
        collate([])
    except Exception as error:  # noqa: BLE001  # the user's code
        return repr(error)
    return ""


def _rows_alone(row: Any, collate: Collate) -> int:
    with suppress(Exception):  # of the user's code, for a sample that it leaves out
        return max(_num_rows(collate([row])), 0)
    return 0


def _num_rows(batch: Batch) -> int:
    """Rows of each part of a batch; -1 if the parts differ, or have none."""
    lengths = _lengths(batch)
    return lengths.pop() if len(lengths) == 1 else -1


def _lengths(batch: Batch) -> set[int]:
    if isinstance(batch, torch.Tensor | np.ndarray):
        return {*batch.shape[:1]}
    if not isinstance(batch, Mapping | list | tuple):
        return set()
    parts = batch.values() if isinstance(batch, Mapping) else batch
    nested = ({len(each)} if isinstance(each, list | tuple) else _lengths(each) for each in parts)
    return set[int]().union(*nested)
