"""Optimizers and schedules of the exactness fuzzer; for workers only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from holdfast_bench.exactness.case import Recipe, Schedule, Scheduler

RATE: Final = 0.01
"""The learning rate of those that take one."""
MAX_NORM: Final = 0.3
"""The norm to which `Clipping` scales gradients down."""


class Clipping(optim.SGD):
    """Scales its gradients in place where they are long, which they are only from a later step on
    (see `task`): what it is given must be its own.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Clip, then step."""
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        nn.utils.clip_grad_norm_(held, MAX_NORM)
        super().step(closure)


class Counting(optim.SGD):
    """Lowers the rate by a counter in its parameter groups, as schedule-free optimizers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count, then step at the lower rate."""
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = group["lr"] / group["count"]
        super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


class Nested(optim.Optimizer):
    """Two optimizers in a list, each for every other parameter."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        self.parts = [
            optim.SGD(held[::2], lr=lr, momentum=0.9),
            optim.AdamW(held[1::2], lr=lr),
        ]
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step both."""
        for part in self.parts:
            part.step(closure)


_BUILDERS: Final[dict[str, tuple[Callable[..., optim.Optimizer], dict[str, Any]]]] = {
    "sgd": (optim.SGD, {"weight_decay": 0.01}),
    "momentum": (optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    "nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {"weight_decay": 0.01}),
    "amsgrad": (optim.Adam, {"amsgrad": True}),
    "adamw": (optim.AdamW, {}),
    "tensor_rate": (optim.AdamW, {"lr": torch.tensor(RATE)}),
    "adagrad": (optim.Adagrad, {"lr_decay": 0.01}),
    "adagrad_initial": (optim.Adagrad, {"initial_accumulator_value": 0.1}),
    "adadelta": (optim.Adadelta, {"lr": 1.0}),
    "adamax": (optim.Adamax, {}),
    "asgd": (optim.ASGD, {"t0": 3.0}),
    "nadam": (optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.01}),
    "radam": (optim.RAdam, {}),
    "rmsprop": (optim.RMSprop, {"centered": True, "momentum": 0.5}),
    "rprop": (optim.Rprop, {}),
    "adafactor": (optim.Adafactor, {}),
    "clipping": (Clipping, {"momentum": 0.5}),
    "counting": (Counting, {"momentum": 0.5}),
    "nested": (Nested, {}),
}


def optimizer(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """The optimizer of a recipe, its parameters assigned to groups with different rates."""
    build, options = _BUILDERS[recipe.optimizer]
    held = list(parameters)
    rate = options.get("lr", RATE)
    groups = [
        {"params": held[first :: recipe.groups], "lr": rate / (1 + first)}
        for first in range(recipe.groups)
        if held[first :: recipe.groups]
    ]
    if recipe.implementation != "default":
        options = options | {recipe.implementation: True}
    return build(groups, **(options | {"lr": rate}))


def schedule(kind: Schedule) -> Callable[[int], Callable[[int], float]] | None:
    """The schedule for `session.attach`."""
    match kind:
        case "none":
            return None
        case "warmup":
            return lambda _total: lambda step: min(1.0, (step + 1) / 5)
        case "cosine":
            return lambda total: lambda step: 0.5 * (1 + math.cos(math.pi * step / total))


def attached(recipe: Recipe) -> Callable[..., Any] | None:
    """The schedule that a recipe gives to `session.attach`."""
    if recipe.attaches:
        return lambda optimizer, total_steps: scheduler(recipe.scheduler, optimizer, total_steps)
    return schedule(recipe.schedule)


def scheduler(
    kind: Scheduler, held: optim.Optimizer, steps: int
) -> lr_scheduler.LRScheduler | None:
    """One of torch's for a run of so many steps, changing the rate in most of them."""
    return None if kind == "none" else _SCHEDULERS[kind](held, steps)


def _one_cycle(held: optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
    """It cycles the momentum too, where there is one."""
    has_momentum = "betas" in held.defaults or held.defaults.get("momentum", 0) != 0
    return lr_scheduler.OneCycleLR(
        held, 2 * RATE, total_steps=steps + 1, cycle_momentum=has_momentum
    )


def _sequential(held: optim.Optimizer, _steps: int) -> lr_scheduler.LRScheduler:
    first = lr_scheduler.ConstantLR(held, factor=0.5, total_iters=2)
    then = lr_scheduler.CosineAnnealingLR(held, T_max=5)
    return lr_scheduler.SequentialLR(held, [first, then], milestones=[2])


_SCHEDULERS: Final[dict[Scheduler, Callable[[optim.Optimizer, int], lr_scheduler.LRScheduler]]] = {
    "exponential": lambda held, _: lr_scheduler.ExponentialLR(held, 0.9),
    "step": lambda held, _: lr_scheduler.StepLR(held, step_size=3, gamma=0.5),
    "restarts": lambda held, _: lr_scheduler.CosineAnnealingWarmRestarts(held, T_0=3, T_mult=2),
    "one_cycle": _one_cycle,
    "plateau": lambda held, _: lr_scheduler.ReduceLROnPlateau(
        held, factor=0.7, patience=0, threshold=0.05
    ),
    "sequential": _sequential,
}
