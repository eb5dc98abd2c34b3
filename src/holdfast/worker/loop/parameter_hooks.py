"""Parameter hooks: hooks of parameters get the gradient of the whole batch, as in a plain loop.

Autograd would call them with the part of one shard, and a part that is clipped is not part of the
clipped gradient. So they are taken from the parameters when the loop over shards begins, and called
where `session.on_gradients` is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn


def take_hooks(parameters: Iterable[nn.Parameter]) -> list[Callable[[], None]]:
    """Take the hooks from parameters; returns functions that call them with the gradients there."""
    calls = list[Callable[[], None]]()
    for parameter in parameters:
        hooks = parameter._backward_hooks
        if hooks:
            calls += [partial(_replace_gradient, parameter, each) for each in hooks.values()]
            hooks.clear()
        late = parameter._post_accumulate_grad_hooks
        if late:
            calls += [partial(_call, parameter, each) for each in late.values()]
            late.clear()
    return calls


def _replace_gradient(
    parameter: nn.Parameter, hook: Callable[[torch.Tensor], torch.Tensor | None]
) -> None:
    if parameter.grad is not None:
        changed = hook(parameter.grad)
        if changed is not None:
            parameter.grad = changed


def _call(parameter: nn.Parameter, hook: Callable[[torch.Tensor], object]) -> None:
    if parameter.grad is not None:
        hook(parameter)
