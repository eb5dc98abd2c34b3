"""Finite check: whether a step changes the weights, decided on the device that has its gradient.

    gradient ─▶ norm ─▶ clip factor, found_inf ─▶ fused optimizer: skips by itself
                 └▶ one small copy to the host ─▶ loss, norm, logged values: a step later

The host enqueues the next step meanwhile, so the device never waits for it. An optimizer that
cannot skip by itself is stepped once the host has the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

_SKIPPING: Final = (SGD, Adam, AdamW, Adagrad)
"""Optimizers whose fused kernels change nothing where `found_inf` is 1."""


def clip(gradients: Sequence[torch.Tensor], norm: torch.Tensor, most: float) -> None:
    """Scale gradients to a norm of at most `most`, if theirs is more.

    Args:
        gradients: float32.
        norm: Their norm, float64[] on their device.
        most: The norm.
    """
    # A quotient of tensors: by a number, PyTorch multiplies with the rounded inverse.
    factor = torch.full_like(norm, most) / (norm + 1e-6)
    factor = torch.where(norm > most, factor, 1.0).float()
    if gradients:
        torch._foreach_mul_(list(gradients), factor)


def begin_readback(values: torch.Tensor) -> Callable[[], list[float]]:
    """Begin to copy a few numbers, float64[n], to the host; the result waits for them."""
    if values.device.type == "cpu":
        return values.clone().tolist
    copied = values.to("cpu", non_blocking=True)  # to page-locked memory
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> list[float]:
        arrived.synchronize()
        values_read: list[float] = copied.tolist()
        return values_read

    return wait


def skips_by_itself(optimizers: Iterable[Optimizer]) -> bool:
    """True if a step with `found_inf` changes nothing with these optimizers: not their tensors, nor
    what hooks of user code would.
    """
    return all(
        type(each) in _SKIPPING
        and all(group.get("fused") for group in each.param_groups)
        and not (each._optimizer_step_pre_hooks or each._optimizer_step_post_hooks)
        and not (isinstance(each, SGD) and _lacks_momentum(each))
        for each in optimizers
    )


def _lacks_momentum(optimizer: SGD) -> bool:
    """True if a momentum is not there yet: a skipped step would leave memory that nothing wrote."""
    return any(
        optimizer.state.get(parameter, {}).get("momentum_buffer") is None
        for group in optimizer.param_groups
        if group["momentum"]
        for parameter in group["params"]
    )


def step_unless(
    is_bad: torch.Tensor, optimizers: Sequence[Optimizer], step: Callable[[], None]
) -> None:
    """Step optimizers, which skip the step on the device if `is_bad` is True there."""
    flag = is_bad.float()
    for each in optimizers:
        each.found_inf = flag  # type: ignore[attr-defined]  # as torch.amp.GradScaler does
    try:
        step()
    finally:
        for each in optimizers:
            del each.found_inf  # type: ignore[attr-defined]
