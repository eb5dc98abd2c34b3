"""Evaluation: spread over the workers, and the same to the last bit for any number of them.

The data set is cut into as many ranges as a step has shards. Each range is measured in batches of
the job's size, and gives a row of weighted sums. Every worker adds all rows in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import nn

from holdfast.arena.memory import Phase
from holdfast.data.dataset import Batch, generators_kept
from holdfast.data.loading.source import Source
from holdfast.errors import JobError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.compute import to_device
from holdfast.worker.context import WorkerContext

Measure = Callable[[nn.Module, Batch], dict[str, float]]

COLUMNS: Final = 16
"""Of a row: the samples measured, and up to 15 sums."""


class Evaluator:
    """One worker's part in every evaluation.

    Args:
        context: Of this worker.
        modules: The model, then further modules that `measure` may use: put into evaluation mode.
        num_shards: How many ranges a data set is cut into.
        batch_size: Samples measured at a time.
        device: Where the model is.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        modules: Sequence[nn.Module],
        num_shards: int,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self._group, self._status, self._modules = context.group, context.status, modules
        self._num_shards, self._batch_size, self._device = num_shards, batch_size, device

    def evaluate(
        self, shards: range, source: Source, measure: Measure, step: int
    ) -> dict[str, float]:
        """The means over `source` of what `measure` gives for batches, on all workers.

        Args:
            shards: The ranges that this worker measures.
            source: What to measure on.
            measure: Means over one batch, by name; the same names for every batch.
            step: Steps committed so far.

        Raises:
            Aborted: The generation is over.
            JobError: `measure` gave different names, or too many.
        """
        self._status.enter(Phase.EVALUATE)
        modes = [(part, part.training) for module in self._modules for part in module.modules()]
        for module in self._modules:
            module.eval()
        try:
            # A worker may be in the middle of a shard, which must not depend on what it measures.
            with torch.no_grad(), generators_kept():
                names, rows = self._measure(shards, source, measure)
        finally:
            for module, was_training in modes:  # each its own: some may be frozen
                module.training = was_training
        payload = json.dumps(names).encode() + b"\n" + rows.numpy().tobytes()
        parts = [_decode(each) for each in self._group.gather(WorkerTag.EVALUATION, step, payload)]
        if len({tuple(names) for names, _ in parts if names}) > 1:
            raise JobError("the evaluation must give the same names for every batch")
        total = _sum(torch.cat([rows for _, rows in parts]))
        means = (total[1:] / total[0]).tolist()
        return dict(zip(next((names for names, _ in parts if names), []), means, strict=False))

    def _measure(
        self, shards: range, source: Source, measure: Measure
    ) -> tuple[list[str], torch.Tensor]:
        """The names of the sums, and a row of weighted sums for each range of this worker."""
        names, rows = list[str](), torch.zeros(len(shards), COLUMNS, dtype=torch.float64)
        batches = source.batches(
            shards, self._num_shards, self._batch_size, self._group.check_abort
        )
        for shard, size, batch in batches:
            values = measure(self._modules[0], to_device(batch, self._device))
            names, row = _same_names(names, sorted(values)), rows[shard - shards.start]
            row[0] += size
            for column, name in enumerate(names, start=1):
                row[column] += size * float(values[name])
        return names, rows


def _same_names(names: list[str], measured: list[str]) -> list[str]:
    if (names and measured != names) or not 0 < len(measured) < COLUMNS:
        raise JobError(
            f"an evaluation gives 1 to {COLUMNS - 1} values, the same for every "
            f"batch; it gave {names or 'none'} and then {measured}"
        )
    return measured


def _decode(payload: bytes) -> tuple[list[str], torch.Tensor]:
    names, _, rows = payload.partition(b"\n")
    return json.loads(names), torch.from_numpy(np.frombuffer(rows).reshape(-1, COLUMNS).copy())


def _sum(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row in rows:
        total += row
    return total
