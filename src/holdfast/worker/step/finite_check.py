"""Finite check: whether a step changes the weights, decided on the device that has its gradient.

    gradient ─▶ norm ─▶ clip factor, found_inf ─▶ fused optimizer: skips by itself
                 └▶ one small copy to the host ─▶ loss, norm, logged values: a step later

The host enqueues the next step meanwhile, so the device never waits for it. An optimizer that
cannot skip by itself is stepped once the host has the copy.

On a CPU the norm is that of a slot, the same as in `collectives.exact` to the last bit. On a GPU it
is made of one norm a parameter: the bits of a reduction depend on its shape there, so every worker
reduces the whole gradient in the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from holdfast.arena.tensors import as_real
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.worker.step.commit import norm_of
from holdfast.worker.step.shard_work import Gradients

_SKIPPING: Final = (SGD, Adam, AdamW, Adagrad)
"""Optimizers whose fused kernels change nothing where `found_inf` is 1."""
_WIDE: Final = (torch.float64, torch.complex128)

Norm = Callable[[Gradients], tuple[torch.Tensor, Callable[[], list[float]]]]
"""Gives the 2-norm of a whole gradient, float64[] on its device, and a function for the norm of
each parameter, 0 without a gradient, which waits for the device. It is called before the next step
commits."""


def norm_on(
    device: torch.device, trained: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
) -> Norm:
    """The norm for gradients on a device.

    Args:
        device: The device.
        trained: The parameters that get a gradient, by name.
        buffers: The model's buffers by name.
    """
    if device.type != "cpu":
        return norm_of_norms
    layout = SlotLayout(trained, buffers)
    slot = Slot(torch.zeros(layout.layout.size_bytes, dtype=torch.uint8), layout)

    def norm_in_slot(gradients: Gradients) -> tuple[torch.Tensor, Callable[[], list[float]]]:
        slot.write_gradients(gradients)
        total = torch.tensor(slot.norm(), dtype=torch.float64)
        return total, lambda: [norm_of(each) for each in slot.gradients]

    return norm_in_slot


def norm_of_norms(gradients: Gradients) -> tuple[torch.Tensor, Callable[[], list[float]]]:
    """The norm of the norms of all parameters; nothing waits for the device."""
    norms: list[torch.Tensor | None] = [None] * len(gradients)
    # In float32 at least, and together as far as that is one call.
    for dtype in (torch.float32, torch.float64):
        own = {
            at: as_real(each)
            for at, each in enumerate(gradients)
            if each is not None and (each.dtype in _WIDE) == (dtype is torch.float64)
        }
        if own:
            found = torch.stack(torch._foreach_norm(list(own.values()), 2, dtype=dtype)).double()
            for at, norm in zip(own, found.unbind(), strict=True):
                norms[at] = norm
    # A norm for every parameter, because the bits of a sum depend on its length.
    present = [each for each in norms if each is not None]
    zero = present[0].new_zeros(()) if present else torch.zeros(()).double()
    every = torch.stack([zero if each is None else each for each in norms])
    total: torch.Tensor = torch.linalg.vector_norm(every)
    return total, lambda: [0.0 if each is None else float(each) for each in norms]


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
        found: list[float] = copied.tolist()
        return found

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
    found = is_bad.float()
    for each in optimizers:
        each.found_inf = found  # type: ignore[attr-defined]  # as torch.amp.GradScaler does
    try:
        step()
    finally:
        for each in optimizers:
            del each.found_inf  # type: ignore[attr-defined]
