"""Sharded model: a model whose rows are divided over the workers, seen by one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch.distributed.device_mesh import init_device_mesh

from holdfast.arena.layout import Layout
from holdfast.arena.replica import MODEL, Replica, Trained
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.slot import SlotLayout
from holdfast.errors import JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.gradient_norm import norm_of
from holdfast.worker.step.sharded import divide
from holdfast.worker.step.sharded.block_squares import BlockSquares
from holdfast.worker.step.sharded.gathered_units import Collect, Unit, divide_units
from holdfast.worker.step.sharded.held_rows import UnitRows, held
from holdfast.worker.step.sharded.row_exchange import Collectives, SentRows, SharedRows
from holdfast.worker.step.sharded.row_sums import Exchanges, RowSums

_LEAST: Final = 1 << 14
"""The least number of elements that are gathered by themselves: an exchange costs time, too."""

Means = Mapping[str, torch.Tensor | None]
"""What a worker holds of the gradient of each parameter, flat; None where no shard used it."""


class ShardedModel:
    """The part of a model that one worker has.

    Args:
        whole: The model and its optimizers, which are divided here.
        layout: Layout of the whole state.
        context: Context of the worker.

    Attributes:
        trained: What this worker holds.

    Raises:
        JobError: It cannot be divided.
    """

    def __init__(self, whole: Trained, layout: Layout, context: WorkerContext) -> None:
        words = context.job.parallel.words
        divide.check(whole, words)
        self._rank = rank = context.group.rank
        self._num_workers = number = len(context.group.members)
        parameters = whole.model_parameters()
        self._device = next(iter(parameters.values())).device
        # Where a host has all workers, each can read the rows of the others.
        self._is_shared = context.group.network is None and self._device.type == "cpu"
        self._must_meet = True
        shapes = {name: each.shape for name, each in parameters.items()}
        dtypes = {name: each.dtype for name, each in whole.parameters().items()}
        slots = SlotLayout(whole.parameters(), whole.model_buffers())
        self._collectives = Collectives(context, self._device)
        self._squares = BlockSquares(
            slots, [shapes[name] for name in dtypes], rank, number, self._collectives
        )
        cuts = [{n: held(shape, at, number) for n, shape in shapes.items()} for at in range(number)]
        part = divide.own_part(whole, layout, cuts, rank)
        self.trained = replace(whole, part=part)
        del parameters  # so that each is freed as soon as its unit is divided
        mesh = init_device_mesh(self._device.type, (number,))
        gather_of = self._collectives.gather_of
        self._units = divide_units(whole.model, mesh, gather_of, self._on_gradients, _LEAST)
        self._collect: Collect = _refuse
        self._rows: list[UnitRows] = []
        self._of_unit: dict[Unit, int] = {}
        for unit in self._units:
            names = [name for name in unit.names if name in dtypes]
            kinds = {dtypes[name] for name in names}
            if len(kinds) > 1:
                raise JobError(
                    f"{words} does not support {names[0]} and others of unlike dtypes in one "
                    "module; give them one dtype"
                )
            if names:
                self._of_unit[unit] = len(self._rows)
                in_unit = {name: shapes[name] for name in names}
                self._rows.append(UnitRows(in_unit, dtypes[names[0]], number))

    @property
    def leaves(self) -> Iterator[torch.Tensor]:
        """The parameters that losses depend on."""
        return (leaf for unit in self._units for leaf in unit.leaves)

    def begin(self, replica: Replica, sections: Sections, collect: Collect) -> None:
        """Begin to train.

        Args:
            replica: Has this worker's rows.
            sections: Has the rows of all workers, if they are on this host.
            collect: Takes the gradients of a unit in a backward pass.
        """
        memory = replica.holding.memory
        for unit in self._units:
            places = {name: MODEL + name for name in unit.names}
            unit.bind({n: replica.memory_of(at) for n, at in places.items() if at in memory})
            if self._is_shared:
                rows = {n: [*_rows_of(at, replica, sections)] for n, at in places.items()}
                unit.read_from(rows, self._meet_after_update)
        self._collect = collect

    def _meet_after_update(self) -> None:
        """Wait until all workers have updated the weights that are read next."""
        if self._must_meet:
            self._must_meet = False
            self._collectives.agree(0)

    def _on_gradients(self, unit: Unit, gradients: Gradients) -> None:
        if unit in self._of_unit:
            self._collect(unit, gradients)

    def begin_shard(self) -> None:
        """Begin a shard, before its forward pass."""
        for unit in self._units:
            unit.begin_shard()

    def end_backward(self) -> None:
        """End a backward pass: hand on gradients of units that it has passed less often than the
        forward pass.
        """
        for unit in self._units:
            unit.end_backward()

    def free(self) -> None:
        """Free gathered weights, which have changed."""
        self._must_meet = True
        for unit in self._units:
            unit.free()

    def sums(self, num_leaves: int, sections: Sections) -> RowSums:
        """Sums of gradients over the leaves of a tree."""
        number = self._num_workers
        size_bytes = max(number * each.size * each.dtype.itemsize for each in self._rows)
        exchanges: Exchanges
        if self._is_shared:
            memory = sections.exchanged[:, :, :size_bytes]
            exchanges = SharedRows(self._collectives, memory, self._rank)
        else:
            exchanges = SentRows(self._collectives, size_bytes, self._device)
        return RowSums(self._rows, self._rank, number, num_leaves, exchanges)

    def add(self, sums: RowSums, unit: Unit, gradients: Gradients, scale: float) -> None:
        """Add the gradients of a unit; see `RowSums.add`."""
        at = self._of_unit[unit]
        named = dict(zip(unit.names, gradients, strict=True))
        sums.add(at, [named[name] for name in self._rows[at].names], scale)

    def norm(self, gradients: Means) -> float:
        """The 2-norm of the gradient, with the bits of one that is not divided."""
        return self._squares.norm(gradients)

    def norms(self, gradients: Means) -> dict[str, float]:
        """The norm of each parameter's gradient; what several workers hold counts for each."""
        norms = [0.0 if each is None else norm_of(each) ** 2 for each in gradients.values()]
        squares = torch.tensor(norms, dtype=torch.float64)
        self._collectives.sum(squares)
        return dict(zip(gradients, squares.sqrt().tolist(), strict=True))


def _rows_of(name: str, replica: Replica, sections: Sections) -> Iterator[torch.Tensor]:
    """The rows of a tensor on each worker that has some, padding included."""
    for rank, holding in enumerate(replica.of_ranks):
        if name in holding.memory:
            start, size = holding.memory[name]
            yield sections.replica(rank, holding.own.size_bytes)[start : start + size]


def _refuse(*_: object) -> None:
    """Raises: JobError: Always."""
    raise JobError(
        "a gradient was computed before training began; call session.backward(loss) in the loop "
        "over session.shards"
    )
