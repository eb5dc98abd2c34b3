"""`holdfast.report`: a script says how far it is. It imports no torch, so that any script may."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Protocol, SupportsIndex

from holdfast.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor


class Reports(Protocol):
    """Receiver of what a script reports."""

    def report(self, step: int, loss: float | Tensor | None, samples: int) -> None:
        """Take a report."""


receiver: Reports | None = None
"""That of this process; None where no run of holdfast executes a script."""


def report(
    step: SupportsIndex, *, loss: float | Tensor | None = None, samples: SupportsIndex = 0
) -> None:
    """Report how far a script is, for the record of its run and all who show it.

    Call it after each step, on rank 0 or on all workers; only what rank 0 reports is recorded. It
    waits for no GPU. Outside of ``holdfast run`` it does nothing.

    Args:
        step: Steps done so far, this one included; after a restart, those of the checkpoint count.
            If it is not higher than the one before, the script has gone back: what was recorded
            from this step on is forgotten.
        loss: The loss of this step, a number or a tensor with one element. One that is not finite
            is recorded as unknown. Default: None, not known.
        samples: Samples of all workers since the report before. Default: 0, not known.

    Raises:
        JobError: An argument is no such number.

    Example::

        >>> holdfast.report(step=1, loss=0.7, samples=64)
    """
    done = _whole("step", step)
    count = _whole("samples", samples)
    if getattr(loss, "numel", int)() > 1:
        raise JobError("report: loss has several elements; pass their mean")
    if receiver is not None:
        receiver.report(done, loss, count)


def _whole(name: str, value: SupportsIndex) -> int:
    """Raises: JobError: It is no whole number from 0 on."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise JobError(f"report: {name} is {value!r}; pass a whole number, 0 or more")
    return number
