"""Evaluation, spread over the workers and yet the same to the last bit for any number of them.

The data set is cut into as many stretches as a step has shards, and each is measured in batches of
the job's size. Weighted sums are written down a row a stretch and added in row order by everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from holdfast.arena.memory import Phase
from holdfast.arena.tensors import read_names, write_names
from holdfast.core.seeds import seed_for
from holdfast.data.dataset import (
    Batch,
    Dataset,
    generator_for,
    generators_kept,
    seed_everything,
)
from holdfast.errors import JobError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.compute import moved
from holdfast.worker.context import WorkerContext

Measure = Callable[[nn.Module, Batch], dict[str, float]]

COLUMNS: Final = 16
"""Of a row: the samples measured, and up to 15 sums."""


@dataclass(frozen=True, slots=True)
class EvaluationTable:
    """Shared memory for the sums of an evaluation.

    Attributes:
        rows: float64[num_shards, COLUMNS], each written by the worker that measures it.
        names: uint8[n], the names of the sums; whoever measures writes the same.
    """

    rows: torch.Tensor
    names: torch.Tensor


class Evaluator:
    """Measures on one worker what it owes.

    Args:
        context: Of this worker.
        table: Where the sums are written down, shared.
        modules: The model, and what `measure` may use next to it: put into evaluation mode.
        batch_size: Samples measured at a time.
        device: Where the model is.
    """

    def __init__(
        self,
        context: WorkerContext,
        table: EvaluationTable,
        *,
        modules: Sequence[nn.Module],
        batch_size: int,
        device: torch.device,
    ) -> None:
        self._context, self._table, self._modules = context, table, modules
        self._batch_size, self._device = batch_size, device

    def evaluate(
        self, shards: range, dataset: Dataset, measure: Measure, step: int
    ) -> dict[str, float]:
        """The means over `dataset` of what `measure` gives for batches, on all workers.

        Args:
            shards: The stretches that this worker measures.
            dataset: What to measure on.
            measure: Means over one batch, by name; the same names for every batch.
            step: Steps committed so far.

        Raises:
            Aborted: The generation is over.
            JobError: `measure` gave different names, or too many.
        """
        group, rows = self._context.group, self._table.rows
        self._context.status.enter(Phase.EVALUATE)
        modes = [(part, part.training) for module in self._modules for part in module.modules()]
        for module in self._modules:
            module.eval()
        try:
            # Who measures what is not to show in the shard that this may be in the middle of.
            with torch.no_grad(), generators_kept():
                names = self._measure(shards, dataset, measure)
        finally:
            for module, was_training in modes:  # each its own: some may be frozen
                module.training = was_training
        if names:
            write_names(self._table.names, names)
        seen = group.barrier(WorkerTag.EVALUATION, step, seed_for(*names) if names else 0)
        if len({digest for digest in seen if digest}) > 1:
            raise JobError("the evaluation must give the same names for every batch")
        means = (_sum(rows)[1:] / rows[:, 0].sum()).tolist()
        result = dict(zip(read_names(self._table.names), means, strict=False))
        group.barrier(WorkerTag.EVALUATED, step)
        return result

    def _measure(self, shards: range, dataset: Dataset, measure: Measure) -> list[str]:
        """Write the weighted sums over this worker's stretches; returns their names."""
        rows, names = self._table.rows, list[str]()
        for shard in shards:
            rows[shard].zero_()
            start = len(dataset) * shard // len(rows)
            end = len(dataset) * (shard + 1) // len(rows)
            for first in range(start, end, self._batch_size):
                indices = np.arange(first, min(first + self._batch_size, end))
                seed_everything(seed_for("evaluation", first))
                self._context.group.check_abort()
                batch = dataset.batch(indices, generator_for("evaluation", first))
                values = measure(self._modules[0], moved(batch, self._device))
                names = _same_names(names, sorted(values))
                rows[shard, 0] += len(indices)
                for column, name in enumerate(names, start=1):
                    rows[shard, column] += len(indices) * float(values[name])
        return names


def _same_names(names: list[str], found: list[str]) -> list[str]:
    if (names and found != names) or not 0 < len(found) < COLUMNS:
        raise JobError(
            f"an evaluation gives 1 to {COLUMNS - 1} values, the same for every "
            f"batch; it gave {names or 'none'} and then {found}"
        )
    return found


def _sum(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row in rows:
        total += row
    return total
