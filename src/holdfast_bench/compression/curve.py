"""Learning curves: the loss by steps, and by the bytes that a host has sent.

The loss at a step is the mean over the last WINDOW steps up to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

WINDOW: Final = 20
EVERY: Final = 5
"""Steps from one point of a stored curve to the next."""
ITEM_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that each of two hosts sends.

    Attributes:
        step: Of a compressed step.
        whole: Of one that is sent as it is, as the last one of a run is.
    """

    step: float
    whole: int

    @classmethod
    def of(cls, model: nn.Module, ratio: float) -> Traffic:
        """The traffic of a float32 model, whose gradient takes so many times fewer bytes. A host
        sends half of its gradient, and half of the sum; buffers are never compressed.
        """
        gradient = sum(each.numel() for each in model.parameters() if each.requires_grad)
        buffers = sum(each.numel() for each in model.buffers() if each.is_floating_point())
        whole = ITEM_BYTES * (gradient + buffers)
        return cls(step=ITEM_BYTES * (gradient / ratio + buffers), whole=whole)

    def sent(self, step: int, steps: int) -> float:
        """Bytes after so many steps of a run."""
        return step * self.step + (self.whole - self.step if step == steps else 0)


@dataclass(frozen=True, slots=True)
class Curve:
    """The losses of a run.

    Attributes:
        losses: Of each step.
        traffic: Of its hosts.
    """

    losses: Sequence[float]
    traffic: Traffic

    def loss(self, step: int) -> float:
        """The loss at a step, counted from 1."""
        return statistics.mean(self.losses[max(0, step - WINDOW) : step])

    def sent(self, step: int) -> float:
        """Bytes that a host has sent after a step."""
        return self.traffic.sent(step, len(self.losses))

    @property
    def total(self) -> float:
        """Bytes that a host has sent at the end."""
        return self.sent(len(self.losses))

    @property
    def final(self) -> float:
        """The loss at the end."""
        return self.loss(len(self.losses))

    @property
    def points(self) -> list[list[float]]:
        """Step, MB sent, and loss."""
        last = len(self.losses)
        steps = [1, *range(EVERY, last, EVERY), last]
        return [[s, round(self.sent(s) / 1e6, 4), round(self.loss(s), 4)] for s in steps]

    def loss_at(self, sent: float) -> float:
        """The loss when a host has sent so many bytes, which are those of a whole step or more."""
        return self.loss([step for step in self._steps if self.sent(step) <= sent][-1])

    def sent_until(self, loss: float) -> float | None:
        """Bytes that a host has sent when the loss first is so low; None if it never is."""
        found = [step for step in self._steps if self.loss(step) <= loss]
        return self.sent(found[0]) if found else None

    @property
    def _steps(self) -> range:
        return range(1, len(self.losses) + 1)


def compared(curves: Mapping[str, Curve], reference: str) -> dict[str, dict[str, float | None]]:
    """Columns that compare the curves of a workload at the same bytes.

    `same_bytes_loss` is the loss when as many bytes are sent as the least of all sends in its run.
    `target_mb` are those until the loss that `reference` has after half of its steps.
    """
    least = min(each.total for each in curves.values())
    target = curves[reference].loss(len(curves[reference].losses) // 2)
    columns = {}
    for name, curve in curves.items():
        sent = curve.sent_until(target)
        columns[name] = {
            "same_bytes_loss": round(curve.loss_at(least), 4),
            "target_loss": round(target, 4),
            "target_mb": None if sent is None else round(sent / 1e6, 3),
        }
    return columns
