"""Sharded model: a model whose rows are divided over the workers, seen by one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from holdfast.arena import optimizer_state
from holdfast.arena.holding import Holding, Piece
from holdfast.arena.layout import ITEM_BYTES, Entry, Layout, aligned
from holdfast.arena.nested_optimizers import groups_of, parameters_of, states_of
from holdfast.arena.replica import MODEL, Part, Replica, Trained
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.slot import SlotLayout
from holdfast.errors import JobError
from holdfast.worker.checks.optimizer_cut import can_be_cut
from holdfast.worker.context import WorkerContext
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.gradient_norm import norm_of
from holdfast.worker.step.sharded.block_squares import BlockSquares
from holdfast.worker.step.sharded.gathered_units import Collect, Unit, divide_units
from holdfast.worker.step.sharded.held_rows import STRIDE, Held, UnitRows, held
from holdfast.worker.step.sharded.row_exchange import Collectives, SentRows, SharedRows
from holdfast.worker.step.sharded.row_sums import Exchanges, RowSums

_LEAST: Final = 1 << 14
"""The least number of elements that are gathered by themselves: an exchange costs time, too."""

Means = Mapping[str, torch.Tensor | None]
"""Part that a worker holds of the gradient of each parameter, flat; None where no shard used it."""


class ShardedModel:
    """The part of a model that one worker has.

    Args:
        whole: The model and its optimizers, which are divided here.
        layout: Layout of the whole state.
        context: Context of the worker.

    Attributes:
        trained: The part that this worker holds.

    Raises:
        JobError: It cannot be divided.
    """

    def __init__(self, whole: Trained, layout: Layout, context: WorkerContext) -> None:
        words = context.job.parallel.words
        _check_divisible(whole, words)
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
        part = _own_part(whole, layout, cuts, rank)
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


Cuts = Mapping[str, Held]
"""Rows that this worker holds of each parameter, by name."""


def _check_divisible(trained: Trained, words: str) -> None:
    """Check that rows of a model can be trained apart.

    Args:
        trained: The model, and its optimizers, which have taken no step.
        words: The key that divides it, for messages.

    Raises:
        JobError: They cannot.
    """
    for name, parameter in trained.model_parameters().items():
        where = f"{words} does not support the parameter {name}"
        if not parameter.dim():
            raise JobError(f"{where}, which has no rows; give it the shape (1,)")
        if not parameter.is_contiguous():
            raise JobError(f"{where} in its memory format; make it contiguous")
        if parameter.is_complex():
            raise JobError(f"{where}, which is complex; make it real")
        if parameter._backward_hooks:
            raise JobError(
                f"{where} with a hook on its gradient, as no worker has the whole of it; remove it"
            )
    for optimizer in trained.optimizers:
        if not can_be_cut(optimizer, STRIDE):
            raise JobError(
                f"{words} does not support {type(optimizer).__name__}, whose step over some "
                "elements of a parameter depends on the others; set parallel.zero=0, or use "
                "another optimizer, such as AdamW"
            )


def _own_part(trained: Trained, layout: Layout, of_ranks: Sequence[Cuts], rank: int) -> Part:
    """The part of a model that a worker holds. The optimizers hold that part from now on.

    Args:
        trained: The model and its optimizers.
        layout: Layout of the whole state.
        of_ranks: Rows that each worker holds of each parameter.
        rank: The worker.

    Raises:
        JobError: An optimizer keeps what cannot be cut.
    """
    cuts = of_ranks[rank]
    state_dicts = trained.state_dicts()
    wholes = trained.model_parameters()
    own_parameters = {name: _own(parameter, cuts[name]) for name, parameter in wholes.items()}
    holdings = [_holding(trained, layout, each) for each in of_ranks]
    _step_only(trained, {wholes[name]: own_parameters[name] for name in own_parameters}, cuts)
    return Part(
        holding=holdings[rank],
        of_ranks=holdings,
        parameters={name: each for name, each in own_parameters.items() if cuts[name].size},
        buffers=frozenset(trained.model_buffers()),
        state_dicts=state_dicts,
    )


def _own(parameter: nn.Parameter, held: Held) -> nn.Parameter:
    values = parameter.detach().view(-1)[held.start : held.end].clone()
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


def _holding(trained: Trained, layout: Layout, cuts: Cuts) -> Holding:
    """The places of what a worker holds, flat and one tensor after the other."""
    parameters = trained.model_parameters()
    of_state = {
        optimizer_state.name_of(name, "", path): name
        for optimizer in trained.optimizers
        for path, _ in states_of(optimizer)
        for name in parameters
    }
    own_entries: list[Entry] = []
    pieces: list[Piece] = []
    memory: dict[str, tuple[int, int]] = {}
    end = 0
    for entry in layout.entries:
        item = ITEM_BYTES[entry.dtype]
        prefix, colon, _ = entry.name.rpartition(":")
        name = of_state.get(prefix + colon, entry.name.removeprefix(MODEL))
        held = cuts.get(name)
        if held is not None and not held.size:
            continue
        if held is None or not entry.shape:  # a buffer, or a count
            own_entries.append(replace(entry, offset=end))
            pieces.append(Piece(entry.offset, end, entry.size_bytes))
            end += aligned(entry.size_bytes)
            continue
        if entry.shape != tuple(parameters[name].shape):
            raise JobError(
                f"parallel.zero does not support {entry.name}, which has another shape than the "
                "parameter; set parallel.zero=0, or use another optimizer, such as AdamW"
            )
        own_entries.append(replace(entry, shape=(held.size,), offset=end, strides=()))
        pieces.append(Piece(entry.offset + held.start * item, end, held.size * item))
        rows = (held.rows_start - held.start) * item
        memory[entry.name] = (end + rows, held.rows_padded * item)
        end += aligned(held.memory * item)
    return Holding(layout, Layout(tuple(own_entries), end), tuple(pieces), memory)


def _step_only(trained: Trained, own: Mapping[torch.Tensor, nn.Parameter], cuts: Cuts) -> None:
    """Give optimizers the `own` part of each parameter in its place, and of what they keep."""
    held: dict[torch.Tensor, Held] = {
        p: cuts[name] for name, p in trained.model_parameters().items()
    }
    for optimizer in trained.optimizers:
        parameters = parameters_of(optimizer)
        for _, state in states_of(optimizer):
            for parameter in (each for each in parameters if each in state):
                values = state.pop(parameter)
                cut = slice(held[parameter].start, held[parameter].end)
                for key, value in values.items():
                    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                        values[key] = value.reshape(-1)[cut].clone()
                if held[parameter].size:  # of what it does not hold, it keeps nothing
                    state[own[parameter]] = values
        for group in groups_of(optimizer):
            group["params"] = [own[each] for each in group["params"]]
