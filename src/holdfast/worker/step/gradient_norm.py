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
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.errors import NonFiniteError

MAX_FINITE_NORM: Final = 2.0**64
"""The norm whose square overflows float32: PyTorch's own total norm would be infinite, and so would
what an optimizer such as Adam keeps of the squares, for the rest of the run."""

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
    real = {at: as_real(each) for at, each in enumerate(gradients) if each is not None}
    zero = torch.zeros((), dtype=torch.float64)
    norms: dict[int, torch.Tensor] = {}
    every: torch.Tensor | None = None
    # In float32 at least. A call for each dtype: PyTorch takes another kernel for several dtypes,
    # and which parameters have a gradient must not matter.
    for dtype in dict.fromkeys(each.dtype for each in real.values()):
        of_dtype = {at: each for at, each in real.items() if each.dtype is dtype}
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        every = torch.stack(torch._foreach_norm([*of_dtype.values()], 2, dtype=wide)).double()
        if len(of_dtype) < len(gradients):
            zero = every.new_zeros(())
            norms |= zip(of_dtype, every.unbind(), strict=True)
    # A norm for every parameter, because the bits of a sum depend on its length.
    if every is None or norms:
        every = torch.stack([norms.get(at, zero) for at in range(len(gradients))])
    total: torch.Tensor = torch.linalg.vector_norm(every)
    return total, every.tolist


def not_finite(
    step: int,
    norms: Mapping[str, float],
    advice: str = "look at the samples of that step",
) -> NonFiniteError:
    """The error for a step whose gradients are not finite.

    Args:
        step: Steps committed before it.
        norms: Their norms by parameter; empty if they are not known.
        advice: Known cause, or a place to look for it.
    """
    # Every norm may be finite although that of all together is not: then the largest one is named.
    infinite = [name for name, norm in norms.items() if not is_finite(norm)]
    largest = [max(norms, key=norms.__getitem__)] if norms else []
    of = f" of {', '.join(infinite[:3] or largest)}" if norms else ""
    return NonFiniteError(
        f"the gradient{of} in step {step + 1} is not finite; {advice}, lower optimizer.lr, "
        "set clip_norm, or skip such steps with non_finite=skip"
    )
