"""Gradient norm: the 2-norm of a step's gradient, and which gradients can be applied.

On a CPU the norm is that of a slot, the same as in `collectives.exact` to the last bit. On a GPU it
is made of one norm a parameter: the bits of a reduction depend on its shape there, so every worker
reduces the whole gradient in the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from holdfast.arena.tensors import as_real
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.errors import NonFiniteError
from holdfast.worker.step.shard_work import Gradients

MAX_FINITE_NORM: Final = 2.0**64
"""The norm whose square overflows float32: PyTorch's own total norm would be infinite, and so would
what an optimizer such as Adam keeps of the squares, for the rest of the run."""
_WIDE: Final = (torch.float64, torch.complex128)

Norm = Callable[[Gradients], tuple[torch.Tensor, Callable[[], list[float]]]]
"""Gives the 2-norm of a whole gradient, float64[] on its device, and a function for the norm of
each parameter, 0 without a gradient, which waits for the device. It is called before the next step
commits."""


def is_finite(norm: float) -> bool:
    """True if a gradient with this 2-norm can be applied; not if it is NaN."""
    return norm < MAX_FINITE_NORM


def norm_of(gradient: torch.Tensor) -> float:
    """The 2-norm of a parameter's gradient."""
    return float(as_real(gradient).double().norm())


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


def not_finite(
    step: int,
    norms: Mapping[str, float],
    advice: str = "look at the samples of that step",
) -> NonFiniteError:
    """The error for a step whose gradients are not finite.

    Args:
        step: Steps committed before it.
        norms: Their norms by parameter.
        advice: Known cause, or a place to look for it.
    """
    # Every norm may be finite although that of all together is not: then the largest one is named.
    odd = [name for name, norm in norms.items() if not is_finite(norm)]
    names = ", ".join(odd[:3] or [max(norms, key=norms.__getitem__)])
    return NonFiniteError(
        f"the gradient of {names} in step {step + 1} is not finite; {advice}, lower optimizer.lr, "
        "set clip_norm, or skip such steps with non_finite=skip"
    )
