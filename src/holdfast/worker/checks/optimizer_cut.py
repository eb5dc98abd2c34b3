"""Optimizer cut: whether an optimizer can step some elements of each parameter, or some of the
parameters, without the others.

That is tried with stand-ins, since no list of optimizers is complete: a few steps over whole
stand-ins, and the same steps over parts of them, must give the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim import Optimizer

from holdfast.arena.nested_optimizers import groups_of, parameters_of, states_of
from holdfast.arena.optimizer_state import shadow_of

_STEPS: Final = 5
_SHAPES: Final = {1: (531,), 2: (37, 29), 3: (19, 7, 5), 4: (13, 5, 3, 3)}
"""Shapes of stand-ins by dimensions: odd, so that no stand-in fills its last vector."""
_LR: Final = 0.01
"""Learning rate in place of zero, with which a warm-up may begin."""

Tensors = Mapping[torch.Tensor, torch.Tensor]
"""A tensor for each parameter."""


@dataclass(frozen=True, slots=True)
class _StandInState:
    """Result of some steps.

    Attributes:
        values: The stand-ins.
        states: Values kept for each parameter, by the path of the optimizer that keeps it.
        options: Options of the groups.
    """

    values: Tensors
    states: Mapping[str, Mapping[torch.Tensor, Mapping[Any, Any]]]
    options: list[dict[str, Any]]


def can_be_cut(optimizer: Optimizer, stride: int) -> bool:
    """True if flat parts of its parameters can be stepped apart.

    Args:
        optimizer: Fresh: it has taken no step.
        stride: The number of elements that cuts are multiples of.
    """
    cuts = (slice(0, stride), slice(stride, 3 * stride), slice(3 * stride, None))
    # The same numbers on all workers, so all come to the same answer.
    generator = torch.Generator().manual_seed(0)
    parameters = parameters_of(optimizer)
    wholes = {each: _random(each, generator) for each in parameters}
    gradients = [{p: _gradient_of(w, generator) for p, w in wholes.items()} for _ in range(_STEPS)]
    try:
        whole = _stepped(optimizer, wholes, gradients)
        parts = [
            _stepped(optimizer, _part(wholes, cut), [_part(each, cut) for each in gradients])
            for cut in cuts
        ]
    except Exception:  # noqa: BLE001  # whatever its step does
        return False
    return (
        all(_are_whole([each.values[p] for each in parts], whole.values[p]) for p in parameters)
        and all(each.states.keys() == whole.states.keys() for each in parts)
        and all(_fit([e.states[path] for e in parts], whole, path) for path in whole.states)
        and all(_are_equal(each.options, whole.options) for each in parts)
    )


def can_be_divided(optimizer: Optimizer, own: Collection[torch.Tensor]) -> bool:
    """True if some of its parameters can be stepped without a gradient of the others.

    Args:
        optimizer: Fresh: it has taken no step.
        own: The parameters that are stepped; others are ignored.
    """
    generator = torch.Generator().manual_seed(0)
    wholes = {each: _random(each, generator) for each in parameters_of(optimizer)}
    gradients = [{p: _gradient_of(w, generator) for p, w in wholes.items()} for _ in range(_STEPS)]
    held = [each for each in own if each in wholes]
    try:
        whole = _stepped(optimizer, wholes, gradients)
        # The others are there, without a gradient.
        part = _stepped(optimizer, wholes, [{p: each[p] for p in held} for each in gradients])
    except Exception:  # noqa: BLE001  # whatever its step does
        return False
    return (
        all(_are_equal(part.values[p], whole.values[p]) for p in held)
        and part.states.keys() == whole.states.keys()
        and all(
            _are_equal(part.states[path].get(p), states.get(p))
            for path, states in whole.states.items()
            for p in held
        )
        and _are_equal(part.options, whole.options)
    )


def _random(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    shape = _SHAPES.get(parameter.dim(), (7, 5, 3, *[2] * (parameter.dim() - 3)))
    return torch.randn(shape, generator=generator).to(parameter.dtype)


def _gradient_of(whole: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A gradient of several magnitudes, with zeros."""
    values = torch.randn(whole.shape, generator=generator)
    magnitudes = torch.randint(-5, 2, whole.shape, generator=generator)
    is_zero = torch.rand(whole.shape, generator=generator) < 0.05
    return (values * 10.0**magnitudes).masked_fill(is_zero, 0).to(whole.dtype)


def _part(tensors: Tensors, cut: slice) -> Tensors:
    """A part of each tensor, flat, in memory of its own."""
    return {parameter: each.view(-1)[cut].clone() for parameter, each in tensors.items()}


def _stepped(optimizer: Optimizer, values: Tensors, gradients: Iterable[Tensors]) -> _StandInState:
    """Step a copy of an optimizer over stand-ins."""
    stand_ins = {p: each.clone().requires_grad_() for p, each in values.items()}
    shadow = shadow_of(optimizer, stand_ins, "cpu")
    kept = dict(states_of(shadow))
    for state in kept.values():
        for parameter, stand_in in stand_ins.items():
            _resize(state.get(stand_in, {}), parameter, stand_in)
    for group in groups_of(shadow):
        if isinstance(group.get("lr"), int | float) and not group["lr"]:
            group["lr"] = _LR
    for each in gradients:
        for parameter, stand_in in stand_ins.items():
            stand_in.grad = each[parameter].clone() if parameter in each else None
        type(optimizer).step(shadow)
    return _StandInState(
        {parameter: each.detach() for parameter, each in stand_ins.items()},
        {
            path: {p: state[each] for p, each in stand_ins.items() if each in state}
            for path, state in kept.items()
        },
        [{k: v for k, v in group.items() if k != "params"} for group in groups_of(shadow)],
    )


def _resize(values: dict[Any, Any], parameter: torch.Tensor, stand_in: torch.Tensor) -> None:
    """Fit what an optimizer has created for a parameter to its stand-in."""
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.numel():
            values[key] = torch.full_like(stand_in, value.flatten()[0].item(), dtype=value.dtype)


def _fit(
    parts: list[Mapping[torch.Tensor, Mapping[Any, Any]]], whole: _StandInState, path: str
) -> bool:
    """True if what parts keep is what the whole keeps: rows of it, or the same."""
    for parameter, values in whole.states[path].items():
        for key, value in values.items():
            found = [each.get(parameter, {}).get(key) for each in parts]
            is_cut = isinstance(value, torch.Tensor) and value.dim() > 0
            if is_cut and value.shape != whole.values[parameter].shape:
                return False
            if not (
                _are_whole(found, value) if is_cut else _are_equal(found, [value] * len(found))
            ):
                return False
    return True


def _are_whole(parts: list[Any], whole: torch.Tensor) -> bool:
    return all(isinstance(each, torch.Tensor) for each in parts) and _are_equal(
        torch.cat([each.detach().view(-1) for each in parts]), whole.detach().view(-1)
    )


def _are_equal(one: Any, other: Any) -> bool:
    """True if two values have the same bits."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        bits = (each.contiguous().view(-1).view(torch.uint8) for each in (one, other))
        return torch.equal(*bits)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)
