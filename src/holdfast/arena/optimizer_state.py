"""What an optimizer will keep for each parameter, found out before its first step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import torch
from torch.optim import Optimizer

from holdfast.arena.layout import Field
from holdfast.arena.tensors import field_of
from holdfast.errors import JobError

_KERNEL_CHOICES: Final = ("fused", "foreach", "capturable")


def name_of(parameter: str, key: str) -> str:
    """The name under which state `key` of a parameter is laid out."""
    return f"optimizer.{parameter}:{key}"


def expected_fields(optimizer: Optimizer, names: dict[torch.Tensor, str]) -> list[Field]:
    """The tensors that `optimizer` creates in its first step, as fields.

    A copy of the optimizer takes one step over stand-ins on torch's `meta` device, which have
    shapes but no data.

    Args:
        optimizer: Fresh: it has taken no step yet.
        names: The name of every parameter it may hold.

    Raises:
        JobError: It holds a foreign parameter, or keeps something other than tensors.
    """
    stand_ins: dict[torch.Tensor, str] = {}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        params = []
        for parameter in group["params"]:
            if parameter not in names:
                raise JobError(
                    "the optimizer holds a parameter that is not the model's: "
                    "build it from the parameters that `attach` passes to its factory"
                )
            stand_in = torch.empty_like(parameter, device="meta", requires_grad=True)
            stand_in.grad = torch.empty_like(stand_in)
            stand_ins[stand_in] = names[parameter]
            params.append(stand_in)
        # The fused and grouped kernels keep the same state but do not run on `meta`.
        plain: dict[str, Any] = {
            key: False for key in ("fused", "foreach", "capturable") if key in group
        }
        groups.append({**group, **plain, "params": params})
    shadow = object.__new__(type(optimizer))
    shadow.__dict__ |= optimizer.__dict__ | {"state": defaultdict(dict), "param_groups": groups}
    type(optimizer).step(shadow)
    return [
        _field(name_of(stand_ins[stand_in], key), value, optimizer)
        for stand_in, state in shadow.state.items()
        for key, value in state.items()
        if value is not None
    ]


def _field(name: str, value: object, optimizer: Optimizer) -> Field:
    if not isinstance(value, torch.Tensor):
        raise JobError(
            f"{type(optimizer).__name__} keeps {name} as a {type(value).__name__}; "
            "only tensors can be checkpointed and recovered: use one of torch.optim's optimizers "
            "whose state is tensors, such as AdamW or SGD"
        )
    return field_of(name, value)
