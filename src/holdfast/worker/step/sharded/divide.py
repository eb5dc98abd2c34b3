"""Division: what each worker holds of a model and of its optimizers' state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from holdfast.arena import optimizer_state
from holdfast.arena.holding import Holding, Piece
from holdfast.arena.layout import ITEM_BYTES, Entry, Layout, aligned
from holdfast.arena.nested_optimizers import groups_of, parameters_of, states_of
from holdfast.arena.replica import MODEL, Part, Trained
from holdfast.errors import JobError
from holdfast.worker.checks.optimizer_cut import can_be_cut
from holdfast.worker.step.sharded.held_rows import STRIDE, Held

Cuts = Mapping[str, Held]
"""What this worker holds of each parameter, by name."""


def check(trained: Trained, words: str) -> None:
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


def own_part(trained: Trained, layout: Layout, of_ranks: Sequence[Cuts], rank: int) -> Part:
    """The part of a model that a worker holds. The optimizers hold that part from now on.

    Args:
        trained: The model and its optimizers.
        layout: Layout of the whole state.
        of_ranks: What each worker holds of each parameter.
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
