"""Parts: what a model must be so that its layers can be divided over the workers, and the division.

    parts of the model   0 1 2 3 │ 4 5 6 │ 7 8 9      their composition is the model's `forward`
    stages                   0   │   1   │   2        one for each worker

Each worker builds the whole model, with the random numbers of all of it, and then keeps the tensors
of its stage. Those of other stages become tensors of torch's `meta` device, which have no memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from holdfast.arena import optimizer_state
from holdfast.arena.holding import Holding, Rows
from holdfast.arena.layout import Entry, Layout
from holdfast.arena.nested_optimizers import parameters_of, states_of
from holdfast.arena.replica import MODEL, Part, Trained
from holdfast.core.step.stages import cut
from holdfast.errors import JobError
from holdfast.job.settings import ParallelSettings

PARTS: Final = "pipeline_parts"
"""Method of a model that gives its parts."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A part of a model.

    Attributes:
        compute: Called with what the part before it returns; the first one as the model is.
        uses: The modules and parameters that it uses.
    """

    compute: Callable[..., Any]
    uses: tuple[nn.Module | nn.Parameter, ...]

    @classmethod
    def of(cls, given: object) -> ModelPart:
        """The part that a model describes: a module, or a function and what it uses.

        Raises:
            JobError: It is neither.
        """
        match given:
            case nn.Module():
                return cls(given, (given,))
            case (compute, (*uses,)) if callable(compute):
                owners = [each for each in uses if isinstance(each, nn.Module | nn.Parameter)]
                if len(owners) == len(uses):
                    return cls(compute, tuple(owners))
        raise JobError(
            f"{PARTS} gives a {type(given).__name__}; a part is a module, or a pair: a function, "
            "and a sequence of the modules and parameters that it uses"
        )

    def tensors(self) -> list[torch.Tensor]:
        """The parameters and buffers that it uses."""
        tensors = list[torch.Tensor]()
        for each in self.uses:
            if isinstance(each, nn.Module):
                tensors += [*each.parameters(), *each.buffers()]
            else:
                tensors.append(each)
        return tensors


def parts_of(model: nn.Module) -> list[ModelPart]:
    """The parts of a model.

    Raises:
        JobError: It does not say what they are.
    """
    method = getattr(model, PARTS, None)
    if callable(method):
        return [ModelPart.of(each) for each in method()]
    if isinstance(model, nn.Sequential):
        return [ModelPart.of(each) for each in model]
    raise JobError(
        f"parallel.pipeline does not know the layers of {type(model).__name__}; make it an "
        f"nn.Sequential, give it a method {PARTS}() that returns the parts whose composition is "
        "its forward, or set parallel.zero=3, which divides any layers"
    )


def costs_of(parts: Sequence[ModelPart]) -> list[float]:
    """A guess of the cost of each part: a pass over its parameters. An embedding costs nothing
    where it is looked up, which is its first use.
    """
    seen = set[int]()
    costs = list[float]()
    for part in parts:
        looked_up = {
            id(parameter)
            for each in part.uses
            if isinstance(each, nn.Module)
            for module in each.modules()
            if isinstance(module, nn.Embedding)
            for parameter in module.parameters()
        }
        free = looked_up - seen
        used = {id(each): each.numel() for each in part.tensors()}
        costs.append(sum(size for each, size in used.items() if each not in free))
        seen |= used.keys()
    return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A parameter that several stages use. The first one holds it, and updates it.

    Attributes:
        name: Its name.
        parameter: The parameter; a copy on stages that do not hold it.
        stages: The stages that use it, in order.
    """

    name: str
    parameter: nn.Parameter
    stages: tuple[int, ...]

    def before(self, stage: int) -> int | None:
        """The user before a stage; None if that is the first one."""
        return max((each for each in self.stages if each < stage), default=None)

    def after(self, stage: int) -> int | None:
        """The user after a stage; None if that is the last one."""
        return min((each for each in self.stages if each > stage), default=None)


@dataclass(slots=True, kw_only=True)
class OwnParts:
    """The parts of the model that one worker computes.

    Attributes:
        index, number: This stage, and the number of stages.
        parts: Its parts, in order.
        ties: Parameters that it shares with other stages.
    """

    index: int
    number: int
    parts: Sequence[ModelPart] = ()
    ties: Sequence[Tie] = field(default_factory=tuple)

    @property
    def is_last(self) -> bool:
        """True if it computes the model's output."""
        return self.index == self.number - 1


def divide(
    trained: Trained, layout: Layout, index: int, parallel: ParallelSettings
) -> tuple[Trained, OwnParts]:
    """The part of a model that one stage holds, and the layers that it computes.

    Args:
        trained: The model, of which this worker has all.
        layout: Layout of all that is trained.
        index: The stage.
        parallel: Division of the model.

    Raises:
        JobError: It cannot be divided like this.
    """
    number = parallel.pipeline
    parts = parts_of(trained.model)
    if len(parts) < number:
        raise JobError(
            f"{parallel.words} needs a part of the model for each stage, and "
            f"{type(trained.model).__name__} has {len(parts)}; set parallel.pipeline to at most "
            f"{len(parts)}"
        )
    stages = cut(costs_of(parts), number)
    parameters = trained.model_parameters()
    buffers = trained.model_buffers()
    users = _users(parts, stages)
    names = {id(tensor): name for name, tensor in {**parameters, **buffers}.items()}
    _check(trained, parallel, names, users)
    holders = {name: users[tensor_id][0] for tensor_id, name in names.items()}
    ties = tuple(
        Tie(name=name, parameter=parameter, stages=tuple(users[id(parameter)]))
        for name, parameter in parameters.items()
        if len(users[id(parameter)]) > 1 and index in users[id(parameter)]
    )

    def rows_of(stage: int, entry: Entry) -> Rows | None:
        name = (
            optimizer_state.parameter_of(entry.name)
            if optimizer_state.is_one(entry.name)
            else entry.name.removeprefix(MODEL)
        )
        height = entry.shape[0] if entry.shape else 1
        return Rows(0, height, height) if holders[name] == stage else None

    holdings = [Holding.of_rows(layout, partial(rows_of, stage)) for stage in range(number)]
    part = Part(
        holding=holdings[index],
        of_ranks=holdings,
        parameters={n: p for n, p in parameters.items() if holders[n] == index},
        buffers=frozenset(n for n in buffers if holders[n] == index),
        state_dicts=trained.state_dicts(),
    )
    own_parts = [parts[at] for at in stages[index]]
    divided = Trained(model=trained.model, optimizers=trained.optimizers, part=part)
    return divided, OwnParts(index=index, number=number, parts=own_parts, ties=ties)


def _users(parts: Sequence[ModelPart], stages: Sequence[range]) -> Mapping[int, list[int]]:
    """The stages that use each tensor, in order."""
    users = defaultdict[int, list[int]](list)
    for stage, own in enumerate(stages):
        for tensor_id in dict.fromkeys(id(each) for at in own for each in parts[at].tensors()):
            users[tensor_id].append(stage)
    return users


def _check(
    trained: Trained,
    parallel: ParallelSettings,
    names: Mapping[int, str],
    users: Mapping[int, list[int]],
) -> None:
    """Raises: JobError: The model cannot be divided."""
    model = type(trained.model).__name__
    for tensor_id, name in names.items():
        if not users.get(tensor_id):
            raise JobError(
                f"{PARTS} of {model} leaves out {name}; name the module or parameter with the part "
                "that uses it, or remove it from the model"
            )
    for name, buffer in trained.model_buffers().items():
        if len(users[id(buffer)]) > 1:
            raise JobError(
                f"{parallel.words} does not support the buffer {name}, which layers of several "
                "stages share; give each layer a buffer of its own"
            )
    held = set(map(id, parameters_of(*trained.optimizers)))
    for name, parameter in trained.model_parameters().items():
        if not parameter.requires_grad and id(parameter) in held:
            raise JobError(
                f"{parallel.words} does not support {name}, which the optimizer holds and which "
                "requires no gradient; give the optimizer trained parameters only"
            )


def forget_others(trained: Trained, own: OwnParts) -> None:
    """Leave shapes of all tensors that a stage does not use."""
    used = {id(each) for part in own.parts for each in part.tensors()}
    others = [p for p in trained.model_parameters().values() if id(p) not in used]
    for optimizer in trained.optimizers:
        for _, state in states_of(optimizer):
            for parameter in others:
                state.pop(parameter, None)
    for parameter in others:
        needs_gradient = parameter.requires_grad
        shape = nn.Parameter(torch.empty_like(parameter, device="meta"), needs_gradient)
        try:
            # The same objects: user code and optimizers hold them.
            torch.utils.swap_tensors(parameter, shape)  # type: ignore[no-untyped-call]
        except RuntimeError:  # a module has another reference to it, as those of `nn.RNN` do
            parameter.data = torch.full((), math.nan, dtype=parameter.dtype).expand(parameter.shape)
    for module in trained.model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in used:
                module._buffers[key] = torch.empty_like(buffer, device="meta")
