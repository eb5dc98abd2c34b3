"""Optimizer state: what an optimizer will keep for each parameter, known before its first step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.optim import Optimizer

from holdfast.arena.layout import Field
from holdfast.arena.tensors import field_of
from holdfast.errors import JobError

_PREFIX: Final = "optimizer."
_KERNEL_CHOICES: Final = ("fused", "foreach", "capturable")


def name_of(parameter: str, key: str) -> str:
    """The name under which state `key` of a parameter is laid out."""
    return f"{_PREFIX}{parameter}:{key}"


def is_one(name: str) -> bool:
    """True if a tensor is laid out under a name that `name_of` gave."""
    return name.startswith(_PREFIX)


def expected_fields(optimizers: Iterable[Optimizer], names: dict[torch.Tensor, str]) -> list[Field]:
    """The tensors that optimizers create in their first step, as fields.

    A copy of each optimizer takes one step over stand-ins: on torch's `meta` device, which has
    shapes but no data, or where the optimizer looks at values, over zeros.

    Args:
        optimizers: Fresh: they have taken no step yet.
        names: The name of every parameter they may hold.

    Raises:
        JobError: One holds a foreign parameter or another's, or keeps something other than tensors.
    """
    fields = list[Field]()
    held = set[str]()
    for optimizer in optimizers:
        own = [p for group in optimizer.param_groups for p in group["params"]]
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
    stand_ins: dict[torch.Tensor, str] = {}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        params = []
        for parameter in group["params"]:
            stand_in = torch.zeros_like(parameter, device=device, requires_grad=True)
            stand_in.grad = torch.zeros_like(stand_in)
            stand_ins[stand_in] = names[parameter]
            params.append(stand_in)
        # The fused and grouped kernels keep the same state but do not run on `meta`.
        plain = {key: False for key in _KERNEL_CHOICES if key in group}
        groups.append(group | plain | {"params": params})
    # A copy without its constructor: the optimizer itself must not take a step before the first
    # one.
    shadow = object.__new__(type(optimizer))
    before = _state_of(optimizer, stand_ins, names, device)
    shadow.__dict__ |= optimizer.__dict__ | {"state": before, "param_groups": groups}
    type(optimizer).step(shadow)
    return [
        _field(name_of(stand_ins[stand_in], key), value, optimizer)
        for stand_in, state in shadow.state.items()
        for key, value in state.items()
        if value is not None
    ]


def _state_of(
    optimizer: Optimizer,
    stand_ins: dict[torch.Tensor, str],
    names: dict[torch.Tensor, str],
    device: str,
) -> defaultdict[torch.Tensor, dict[str, Any]]:
    """Copies of the state that some optimizers have before their first step."""
    by_name = {name: stand_in for stand_in, name in stand_ins.items()}
    state = defaultdict[torch.Tensor, dict[str, Any]](dict)
    for parameter, values in optimizer.state.items():
        state[by_name[names[parameter]]] = {
            key: value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value
            for key, value in values.items()
        }
    return state


def _field(name: str, value: object, optimizer: Optimizer) -> Field:
    if not isinstance(value, torch.Tensor):
        raise JobError(
            f"{type(optimizer).__name__} keeps {name} as a {type(value).__name__}; "
            "only tensors can be checkpointed and recovered: use one of torch.optim's optimizers "
            "whose state is tensors, such as AdamW or SGD"
        )
    return field_of(name, value)
