"""Loss scale: keeps gradients within the range of float16.

A gradient below 2^-24 is zero in float16, one above 65,504 is infinite. So the loss is multiplied
by a scale before the backward pass, and the gradient is divided by it afterwards (Micikevicius et
al., "Mixed Precision Training", ICLR 2018, section 3.2). The scale follows the gradients:

    finite        the step counts; GROWTH_INTERVAL such steps in a row double the scale
    not finite    the step is skipped, and the scale is halved

These are the rule and the numbers of `torch.amp.GradScaler`, except that the scale is never below
1: what is not finite without a scale would be so in float32, too, or needs another precision.
A power of two changes exponents only, so it rounds nothing but subnormal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROWTH_INTERVAL: Final = 2000
"""Finite steps in a row after which the scale is doubled."""
MAX_LOG2: Final = 64
"""The inverse of a larger scale would leave gradients few exponents of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The scale of the next step, which is the same on all workers.

    Attributes:
        log2: Its logarithm to base 2, 0 to MAX_LOG2.
        good_steps: Finite steps since it has changed, or since a step was not finite.
    """

    log2: int = 16
    good_steps: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.log2 <= MAX_LOG2 and 0 <= self.good_steps < GROWTH_INTERVAL):
            raise ValueError(f"{self} is no loss scale")

    @property
    def value(self) -> int:
        """Factor of the loss."""
        return 1 << self.log2

    def after(self, *, is_finite: bool) -> LossScale:
        """The scale after a step whose gradient is finite or not."""
        if not is_finite:
            return LossScale(log2=max(0, self.log2 - 1))
        if self.good_steps + 1 < GROWTH_INTERVAL:
            return LossScale(log2=self.log2, good_steps=self.good_steps + 1)
        return LossScale(log2=min(MAX_LOG2, self.log2 + 1))
