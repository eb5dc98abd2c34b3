"""Optimizer state: what an optimizer will keep for each parameter, known before its first step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from itertools import chain
from operator import is_
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.json_values import encode
from holdfast.arena.layout import Field
from holdfast.arena.nested_optimizers import all_of, groups_of, parameters_of, states_of
from holdfast.arena.tensors import field_of
from holdfast.errors import JobError

_PREFIX: Final = "optimizer."
_NESTED: Final = "optimizer["
_HOOKS: Final = "_optimizer_"
_KERNEL_CHOICES: Final = ("fused", "foreach", "capturable")
_STEPS: Final = 16
"""Steps in which an optimizer of user code may create state: some create it after a few."""


def name_of(parameter: str, key: str, path: str = "") -> str:
    """The name under which state `key` of a parameter is laid out.

    Args:
        parameter: Name of the parameter.
        key: The key.
        path: Path of a nested optimizer; empty for one that nothing holds.
    """
    return f"{_NESTED}{path}].{parameter}:{key}" if path else f"{_PREFIX}{parameter}:{key}"


def is_one(name: str) -> bool:
    """True if a tensor is laid out under a name that `name_of` gave."""
    return name.startswith((_PREFIX, _NESTED))


def parameter_of(name: str) -> str:
    """The inverse of `name_of`: name of the parameter that a state belongs to."""
    if name.startswith(_NESTED):
        return name.partition("].")[2].rpartition(":")[0]
    return name.removeprefix(_PREFIX).rpartition(":")[0]


def entries_of(
    optimizer: Optimizer, names: Mapping[torch.Tensor, str]
) -> Iterator[tuple[str, dict[Any, Any], Any]]:
    """The entries that an optimizer keeps for parameters: the name, the dictionary and its key."""
    for path, state in states_of(optimizer):
        for parameter, values in state.items():
            name = names.get(parameter)
            if name is not None and isinstance(values, dict):
                yield from ((name_of(name, key, path), values, key) for key in list(values))


class StateChanges:
    """Detects whether optimizers keep other objects than before, without a look at their names.

    Args:
        optimizers: Optimizers whose state is looked at, with those that they hold.
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self._seen: list[object] = []

    def found(self) -> bool:
        """True if an entry was added, removed or bound to another object since the last call."""
        now = list[object]()
        for optimizer in self._optimizers:
            for _, state in states_of(optimizer):
                entries = [each for each in state.values() if isinstance(each, dict)]
                now += [state, *state, *state.values(), *map(len, entries)]
                now += chain.from_iterable(entries)
                now += chain.from_iterable(map(dict.values, entries))
        before = self._seen
        self._seen = now  # held, so that no other object gets the address of one
        return len(now) != len(before) or not all(map(is_, now, before))


def expected_fields(optimizers: Iterable[Optimizer], names: dict[torch.Tensor, str]) -> list[Field]:
    """The tensors that optimizers create in their first step, as fields; those of user code in
    their first steps.

    A copy of each optimizer takes steps over stand-ins: on torch's `meta` device, which has
    shapes but no data, or where the optimizer looks at values, one over zeros.

    Args:
        optimizers: Fresh: they have taken no step yet.
        names: The name of every parameter they may hold.

    Raises:
        JobError: One holds a foreign parameter or another's, or keeps what cannot be saved.
    """
    fields = list[Field]()
    held = set[str]()
    for optimizer in optimizers:
        own = parameters_of(optimizer)
        if any(parameter not in names for parameter in own):
            raise JobError(
                "the optimizer holds a parameter that is not the model's: "
                "build it from the parameters that `attach` passes to its factory"
            )
        if twice := sorted(held & {names[parameter] for parameter in own}):
            raise JobError(f"two optimizers hold {twice[0]}; give each its own parameters")
        held |= {names[parameter] for parameter in own}
        fields += _fields_of(optimizer, names)
    return fields


def _fields_of(optimizer: Optimizer, names: dict[torch.Tensor, str]) -> list[Field]:
    # `meta` allocates nothing. An optimizer that looks at values fails there, and steps over zeros.
    for device in ("meta", "cpu"):
        try:
            return _rehearse(optimizer, names, device)
        except JobError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever its step does
            failure = error
    raise JobError(
        f"{type(optimizer).__name__} cannot be used: its step with zero gradients "
        f"failed with {type(failure).__name__}: {failure}; use another optimizer"
    ) from failure


def _rehearse(optimizer: Optimizer, names: dict[torch.Tensor, str], device: str) -> list[Field]:
    stand_ins = {
        parameter: torch.zeros_like(parameter, device=device, requires_grad=True)
        for parameter in parameters_of(optimizer)
    }
    shadow = shadow_of(optimizer, stand_ins, device)
    for group in groups_of(shadow):
        # The fused and grouped kernels keep the same state but do not run on `meta`.
        group.update((key, False) for key in _KERNEL_CHOICES if key in group)
    named = {stand_ins[parameter]: names[parameter] for parameter in stand_ins}
    fields: dict[str, Field] = {}
    of_torch = all(type(each).__module__.startswith("torch.") for each in all_of([optimizer]))
    for step in range(1 if of_torch or device != "meta" else _STEPS):
        for each in named:
            each.grad = torch.zeros_like(each)
        try:
            type(optimizer).step(shadow)
        except Exception:  # whatever it does
            if not step:
                raise
            break  # it looks at values later on
        fields = {field.name: field for field in _fields_in(shadow, named)} | fields
    return list(fields.values())


def shadow_of(
    optimizer: Optimizer, stand_ins: dict[torch.Tensor, torch.Tensor], device: str
) -> Optimizer:
    """A copy of an optimizer and of all that it holds: itself it must not take a step before the
    first one.
    """
    states = [values for _, state in states_of(optimizer) for values in state.values()]
    created = [each for state in states if isinstance(state, dict) for each in state.values()]
    tensors = [each for each in created if isinstance(each, torch.Tensor)]
    copies: dict[int, Any] = {id(each): each.detach().clone().to(device) for each in tensors}
    copies |= {id(parameter): each for parameter, each in stand_ins.items()}
    # Without their constructors, in which anything may happen.
    shadows = {each: object.__new__(type(each)) for each in all_of([optimizer])}
    copies |= {id(each): shadow for each, shadow in shadows.items()}
    for each, shadow in shadows.items():
        for key, value in vars(each).items():
            vars(shadow)[key] = value  # shared, if it cannot be copied or may be large
            if not isinstance(value, nn.Module) and not key.startswith(_HOOKS):
                with suppress(Exception):
                    vars(shadow)[key] = deepcopy(value, copies)
        vars(shadow).pop("step", None)  # with which a scheduler counts
    return shadows[optimizer]


def _fields_in(shadow: Optimizer, named: dict[torch.Tensor, str]) -> Iterator[Field]:
    """The tensors in the state of an optimizer. The rest is user state; see
    `worker.user_state.optimizer_values`.

    Raises:
        JobError: It keeps what cannot be saved.
    """
    for name, values, key in entries_of(shadow, named):
        if not isinstance(values[key], torch.Tensor):
            encode(values[key], name)
        elif not isinstance(key, str) or ":" in key:
            raise JobError(f"{name} is not named by a string without a colon; rename it")
        else:
            yield field_of(name, values[key])
