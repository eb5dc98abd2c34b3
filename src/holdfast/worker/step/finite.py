"""Which gradients can be learned from, and what to say of one that cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from holdfast.errors import NonFiniteError

MAX_FINITE_NORM: Final = 2.0**64
"""The norm whose square overflows float32: PyTorch's own total norm would be infinite, and so would
what an optimizer such as Adam keeps of the squares, for the rest of the run."""


def is_finite(norm: float) -> bool:
    """Whether a gradient of this 2-norm can be learned from; NaN is below nothing."""
    return norm < MAX_FINITE_NORM


def not_finite(
    step: int,
    gradients: Mapping[str, torch.Tensor],
    found: str = "look at the samples of that step",
) -> NonFiniteError:
    """What to raise where `gradients`, all of a step, are not finite.

    Args:
        step: Steps committed before it.
        gradients: By parameter.
        found: What is known of the cause, or where to look for it.
    """
    norms = {name: float(value.double().norm()) for name, value in gradients.items()}
    odd = [name for name, norm in norms.items() if not is_finite(norm)]
    names = ", ".join(odd[:3] or [max(norms, key=norms.__getitem__)])
    return NonFiniteError(
        f"the gradient of {names} in step {step + 1} is not finite; {found}, lower optimizer.lr, "
        "set clip_norm, or leave such steps out with non_finite=skip"
    )
