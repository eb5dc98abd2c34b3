"""Finite check: whether a step changes the weights, decided on the device that has its gradient.

    gradient ─▶ norm ─▶ clip factor, found_inf ─▶ fused optimizer: skips by itself
                 └▶ one small copy to the host ─▶ loss, norm, logged values: a step later

The host enqueues the next step meanwhile, so the device never waits for it. An optimizer that
cannot skip by itself is stepped once the host has the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from holdfast.worker.step.commit import MAX_FINITE_NORM

_SKIPPING: Final = (SGD, Adam, AdamW, Adagrad)
"""Optimizers whose fused kernels change nothing where `found_inf` is 1."""

Readback = Callable[[torch.Tensor], Callable[[], list[float]]]
"""Begins to copy a few numbers, float64[n], to the host; the result waits for them."""


class Event(Protocol):
    """Marks a place in the queue of a device."""

    def record(self) -> None:
        """Mark the end of what is queued now."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has passed the mark."""
        ...


class PinnedReadback:
    """Copies numbers to page-locked memory, without waiting for the device.

    Args:
        memory: float64[n], on the host. The copy before has been read before the next one begins.
        new_event: Makes an event of the device.
    """

    def __init__(self, memory: torch.Tensor, new_event: Callable[[], Event]) -> None:
        self._memory = memory
        self._new_event = new_event

    def __call__(self, values: torch.Tensor) -> Callable[[], list[float]]:
        self._memory.copy_(values, non_blocking=True)
        event = self._new_event()
        event.record()

        def wait() -> list[float]:
            event.synchronize()
            found: list[float] = self._memory.tolist()
            return found

        return wait


def readback_from(device: torch.device, count: int) -> Readback:
    """The readback of `count` numbers from a device."""
    if device.type == "cpu":
        return lambda values: values.clone().tolist
    memory = torch.empty(count, dtype=torch.float64, pin_memory=True)
    return PinnedReadback(memory, torch.cuda.Event)


@dataclass(frozen=True, slots=True)
class FiniteCheck:
    """The result for a gradient, on its device.

    Attributes:
        norm: Its 2-norm, float64[].
        is_bad: True if it is not finite, bool[].
    """

    norm: torch.Tensor
    is_bad: torch.Tensor

    @classmethod
    def of(cls, norm: torch.Tensor) -> FiniteCheck:
        """The result for a gradient with this norm."""
        return cls(norm, ~(norm < MAX_FINITE_NORM))  # also if it is NaN

    def clip(self, gradients: Sequence[torch.Tensor], most: float) -> None:
        """Scale gradients to a norm of at most `most`, as far as they are longer.

        Args:
            gradients: float32.
            most: The norm.
        """
        # A quotient of tensors: by a number, PyTorch multiplies with the rounded inverse.
        factor = torch.full_like(self.norm, most) / (self.norm + 1e-6)
        factor = torch.where(self.norm > most, factor, 1.0).float()
        torch._foreach_mul_(list(gradients), factor)


def skips_by_itself(optimizers: Iterable[Optimizer]) -> bool:
    """True if these optimizers change nothing in a step with `found_inf`."""
    return all(
        type(each) in _SKIPPING and all(group.get("fused") for group in each.param_groups)
        for each in optimizers
    )


def step_unless(
    is_bad: torch.Tensor, optimizers: Iterable[Optimizer], step: Callable[[], None]
) -> None:
    """Step optimizers, which skip the step on the device if `is_bad` is True there."""
    found = is_bad.float()
    held = list(optimizers)
    for each in held:
        each.found_inf = found  # type: ignore[attr-defined]  # as torch.amp.GradScaler does
    try:
        step()
    finally:
        for each in held:
            del each.found_inf  # type: ignore[attr-defined]
