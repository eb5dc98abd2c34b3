"""Stage: the layers of a model that one worker computes, in place of the whole `forward`.

    model(x)   stage 0 computes its parts from x, the others from what the stage before sends
               each sends its result on; the last one returns the model's output
               the others return zeros of its shape, so that user code can compute a loss
    backward   the last stage sends the gradient of what it has received to the stage before, and
               so on, from stage to stage

Torch's random generator travels with the activations: every layer draws what it would draw in one
process. A parameter that several stages use travels from the stage that holds it with the first
forward pass after each change. Its gradient goes the other way, shard by shard, and autograd begins
with it: so its parts are added in the order of one process.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from holdfast.arena.digest import digest
from holdfast.arena.memory import float_of, word_of
from holdfast.errors import JobError
from holdfast.worker.step.pipeline.model_parts import OwnParts
from holdfast.worker.step.pipeline.stage_messages import MessageKind, StageMessages

Value = torch.Tensor | tuple[torch.Tensor, ...]
"""Value that passes from one part to the next."""


@dataclass(slots=True, kw_only=True)
class Call:
    """A call of the model in a shard, on one stage.

    Attributes:
        gradients: Gradients of what the stage has received, once they are computed.
        outputs: Tensors that it has sent; empty on the last stage.
    """

    gradients: list[torch.Tensor | None] = field(default_factory=list)
    outputs: tuple[torch.Tensor, ...] = ()

    @property
    def needs_gradient(self) -> bool:
        """True if the next stage computes gradients of the outputs."""
        return any(each.requires_grad for each in self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Downstream:
    """Results for a shard that a stage gets from the stages after it.

    Attributes:
        weight: Weight of the shard; None if the last stage has computed no gradient.
        roots: Tensors at which autograd begins.
        gradients: Their gradients.
    """

    weight: float | None
    roots: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]


class PipelineStage:
    """Computes one worker's layers.

    Args:
        own: The layers.
        messages: Sends to the other stages.
        device: Device of the worker.
    """

    def __init__(self, own: OwnParts, messages: StageMessages, device: torch.device) -> None:
        self._own = own
        self._messages = messages
        self._device = device
        self._shapes: dict[Hashable, Value] = {}
        self._calls: list[Call] = []
        self._in_shard = False
        self._shares_ties = True

    def begin_shard(self) -> None:
        """Note that the calls of the model from now on are those of a shard."""
        self._calls = []
        self._in_shard = True

    def end_shard(self) -> list[Call]:
        """The calls since `begin_shard` that a backward pass may need."""
        self._in_shard = False
        return self._calls

    def on_change(self) -> None:
        """Note that parameters have changed, on all stages."""
        self._shares_ties = True

    def finish(self) -> None:
        """Wait until what was sent has arrived.

        Raises:
            Aborted: The generation is over.
        """
        self._messages.finish()

    def forward(self, *given: Any, **named: Any) -> Value:
        """The model's `forward`.

        Raises:
            Aborted: The generation is over.
            JobError: The model cannot be computed in stages.
        """
        parts = self._own
        self._share_ties()
        key = _signature(given, named)
        entry = digest([self._generator()])
        call = Call()
        if parts.index:
            value, entry = self._receive(call, entry)
            given = (value,)
            named = {}
        others = _other_generators()
        output = self._compute(given, named)
        if self._in_shard:
            self._calls.append(call)
            if _other_generators() != others:
                raise JobError(
                    "parallel.pipeline does not support layers that draw from the generators of "
                    "Python or numpy; draw from torch's"
                )
        if not parts.is_last:
            call.outputs = _tensors(output)
            self._send(parts.index + 1, MessageKind.ACTIVATIONS, entry, output)
            return self._stand_in(key)
        if key not in self._shapes:
            self._shapes[key] = _shape_of(output)
            for stage in range(parts.index):
                self._send(stage, MessageKind.SHAPES, entry, output)
        return output

    def downstream(self, calls: Sequence[Call]) -> Downstream:
        """Wait for what the stages after this one have computed of a shard.

        Args:
            calls: Its calls of the model.

        Raises:
            Aborted: The generation is over.
            JobError: The stages have called the model in different ways.
        """
        parts = self._own
        (has_weight, weight), gradients = self._messages.receive(
            parts.index + 1, MessageKind.GRADIENTS
        )
        if not has_weight:
            return Downstream(weight=None, roots=(), gradients=())
        outputs = [each for call in calls if call.needs_gradient for each in call.outputs]
        if weight and len(gradients) != len(outputs):
            raise JobError(
                "the stages of the pipeline have called the model differently for one shard; call "
                "it in the same way on every worker, whatever it returns"
            )
        pairs = list(zip(outputs, gradients, strict=False))
        for tie in parts.ties if weight else ():
            if (later := tie.after(parts.index)) is not None:
                _, [gradient] = self._messages.receive(later, MessageKind.TIED)
                pairs.append((tie.parameter, gradient))
        present = [(root, each) for root, each in pairs if each is not None]
        return Downstream(
            weight=float_of(weight),
            roots=[root for root, _ in present],
            gradients=[each for _, each in present],
        )

    def send_upstream(self, weight: float | None, calls: Sequence[Call]) -> None:
        """Send what the stages before this one need of a shard, once its backward pass is done.

        Args:
            weight: Weight of the shard; None if no gradient was computed.
            calls: Its calls of the model.

        Raises:
            Aborted: The generation is over.
        """
        parts = self._own
        for tie in parts.ties:
            if (earlier := tie.before(parts.index)) is not None:
                gradient = tie.parameter.grad
                tie.parameter.grad = None
                if weight:
                    self._messages.send(earlier, MessageKind.TIED, [], [gradient])
        if parts.index:
            numbers = [weight is not None, word_of(weight or 0.0)]
            gradients = itertools.chain.from_iterable(call.gradients for call in calls)
            sent = list(gradients) if weight else []
            self._messages.send(parts.index - 1, MessageKind.GRADIENTS, numbers, sent)

    def _compute(self, given: tuple[Any, ...], named: dict[str, Any]) -> Value:
        first, *rest = self._own.parts
        value = first.compute(*given, **named)
        for part in rest:
            value = part.compute(value)
        if isinstance(value, torch.Tensor) or (
            isinstance(value, tuple) and all(isinstance(each, torch.Tensor) for each in value)
        ):
            return value
        raise JobError(
            f"a part of the model returns a {type(value).__name__}; with parallel.pipeline, it "
            "must be a tensor, or a tuple of tensors"
        )

    def _send(self, to: int, kind: MessageKind, entry: int, value: Value) -> None:
        tensors = _tensors(value)
        needed = [each.requires_grad for each in tensors]
        numbers = [entry, isinstance(value, tuple), *needed]
        self._messages.send(to, kind, numbers, [self._generator(), *tensors])

    def _receive(self, call: Call, entry: int) -> tuple[Value, int]:
        """Activations of the stage before, and the generator's state there before the call.

        Args:
            call: Takes their gradients.
            entry: Digest of the generator's state before the call, on this stage.
        """
        (theirs, is_tuple, *needed), (generator, *tensors) = self._messages.receive(
            self._own.index - 1, MessageKind.ACTIVATIONS
        )
        if self._in_shard and entry != theirs:
            raise JobError(
                "parallel.pipeline does not support random numbers of the model between two of its "
                "calls for one shard, or numbers that depend on its output; call the model once "
                "for each shard, or remove dropout"
            )
        assert generator is not None, "activations without a generator"
        self._set_generator(generator)
        return _entered(call, tensors, needed, is_tuple=bool(is_tuple)), theirs

    def _stand_in(self, key: Hashable) -> Value:
        """Zeros in place of the model's output."""
        if key not in self._shapes:
            (_, is_tuple, *needed), (_, *tensors) = self._messages.receive(
                self._own.number - 1, MessageKind.SHAPES
            )
            self._shapes[key] = _value(
                [
                    torch.empty_like(each, device="meta", requires_grad=bool(need))
                    for each, need in zip(tensors, needed, strict=True)
                    if each is not None
                ],
                is_tuple=bool(is_tuple),
            )
        shape = self._shapes[key]
        zeros = [torch.zeros_like(each, device=self._device) for each in _tensors(shape)]
        needed = [each.requires_grad for each in _tensors(shape)]
        return _entered(Call(), zeros, needed, is_tuple=isinstance(shape, tuple))

    def _share_ties(self) -> None:
        """Give the stages the newest values of parameters that they share."""
        if not self._shares_ties:
            return
        self._shares_ties = False
        for tie in self._own.ties:
            holder, *others = tie.stages
            if self._own.index == holder:
                for stage in others:
                    self._messages.send(stage, MessageKind.TIED, [], [tie.parameter])
                continue
            _, [value] = self._messages.receive(holder, MessageKind.TIED)
            assert value is not None, "a parameter without a value"
            with torch.no_grad():
                tie.parameter.copy_(value)

    def _generator(self) -> torch.Tensor:
        """State of torch's generator for the device."""
        if self._device.type == "cuda":
            return torch.cuda.get_rng_state(self._device)
        return torch.get_rng_state()

    def _set_generator(self, state: torch.Tensor) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state.cpu(), self._device)
        else:
            torch.set_rng_state(state)


def _other_generators() -> tuple[object, ...]:
    """States of the generators that do not travel with the activations."""
    numpys: Any = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpys["pos"], numpys["key"].tobytes()


class _Entry(torch.autograd.Function):
    """End of autograd on a stage: its gradients go to the stage before."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,  # noqa: ARG004  # requires a gradient, so that the results do
        call: Call,
        needed: Sequence[bool],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        entered = tuple(each.detach() for each in tensors)
        is_last = [each for each, need in zip(entered, needed, strict=True) if not need]
        ctx.mark_non_differentiable(*is_last)
        return entered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.call.gradients = list(gradients)
        return None, None, None, *(None for _ in gradients)


def _entered(
    call: Call, tensors: Sequence[torch.Tensor | None], needed: Sequence[int], *, is_tuple: bool
) -> Value:
    """Tensors as autograd's inputs, whose gradients `call` takes."""
    inputs = tuple(each for each in tensors if each is not None)
    if torch.is_grad_enabled() and any(needed):
        call.gradients = [None] * len(inputs)
        anchor = torch.zeros((), requires_grad=True)
        inputs = _Entry.apply(anchor, call, needed, *inputs)  # type: ignore[no-untyped-call]
    return _value(inputs, is_tuple=is_tuple)


def _value(tensors: Sequence[torch.Tensor], *, is_tuple: bool) -> Value:
    return tuple(tensors) if is_tuple else tensors[0]


def _tensors(value: Value) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _shape_of(value: Value) -> Value:
    """Tensors without values."""
    shapes = [
        torch.empty_like(each, device="meta", requires_grad=each.requires_grad)
        for each in _tensors(value)
    ]
    return _value(shapes, is_tuple=isinstance(value, tuple))


def _signature(given: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
    """Facts on which the shape of a model's output depends."""
    leaves, spec = tree_flatten((given, named))
    described = [
        (each.shape, each.dtype) if isinstance(each, torch.Tensor) else repr(each)
        for each in leaves
    ]
    return (*described, repr(spec), torch.is_grad_enabled())
