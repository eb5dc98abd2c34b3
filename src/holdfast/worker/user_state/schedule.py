"""Schedule: sets the learning rates of one optimizer."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from holdfast.arena.nested_optimizers import groups_of
from holdfast.errors import JobError

ScheduleFactory = Callable[..., Any]
"""With the parameter `optimizer`, and perhaps `total_steps`, it returns a scheduler of torch. With
`total_steps` alone, it returns a function from a step to the learning rate factor."""

OPTIMIZER: Final = "optimizer"


class Schedule:
    """The schedule of one optimizer.

    Args:
        optimizer: Its learning rates are set.
        factory: Builds the schedule; None leaves the rates as they are.

    Attributes:
        scheduler: The scheduler of torch, once the loop has begun; None if there is none.
    """

    def __init__(self, optimizer: Optimizer, factory: ScheduleFactory | None) -> None:
        self._optimizer = optimizer
        self._factory = factory
        # Copies: restoring a state writes to a rate that is a tensor.
        self._groups = [g for g in groups_of(optimizer) if g.get("lr") is not None]
        self._base_rates = [copy.deepcopy(group["lr"]) for group in self._groups]
        self._factor: Callable[[int], float] | None = None
        self.scheduler: LRScheduler | None = None

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first parameter group; 0 if there is none."""
        return float(self._groups[0]["lr"]) if self._groups else 0.0

    def begin(self, total_steps: int, step: int) -> None:
        """Prepare for a run of `total_steps`, of which `step` are committed.

        Raises:
            JobError: The schedule needs `total_steps`, which is 0: not known. Or it needs a metric.
        """
        if self._factory is None:
            return
        names = list(inspect.signature(self._factory).parameters)
        if names[:1] != [OPTIMIZER]:
            self._factor = self._factory(_known(total_steps))
            self.set_rates(step)
            return
        given = [self._optimizer, *([_known(total_steps)] if len(names) > 1 else [])]
        self.scheduler = self._factory(*given)
        if isinstance(self.scheduler, ReduceLROnPlateau):
            raise JobError(
                "ReduceLROnPlateau is stepped with a metric: give it to session.register, and call "
                "its step in session.on_commit, with session.loss or session.metrics"
            )

    def extend(self, total_steps: int, step: int) -> None:
        """Continue after `step` steps as a run of `total_steps` does, which began with that number.

        Args:
            total_steps, step: Arguments of `begin`.
        """
        for group, rate in zip(self._groups, self._base_rates, strict=True):
            # From the rates at the start: the schedule of the longer run is replayed over them.
            group["lr"] = copy.deepcopy(rate)
            group.pop("initial_lr", None)  # schedulers set it where it is absent
        self.begin(total_steps, step)
        if self.scheduler is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of steps without those of the optimizer
                for _ in range(step):
                    self.scheduler.step()

    def advance(self, step: int) -> None:
        """Set the learning rates for the next step, when `step` are committed."""
        if self.scheduler is not None:
            self.scheduler.step()
        self.set_rates(step)

    def set_rates(self, step: int) -> None:
        """Set the learning rates by the function of the step, if there is one."""
        if self._factor is not None:
            for group, rate in zip(self._groups, self._base_rates, strict=True):
                group["lr"] = rate * self._factor(step)


def _known(total_steps: int) -> int:
    if not total_steps:
        raise JobError(
            "a schedule needs the number of steps, and a stream does not tell; give "
            "session.shards steps=…"
        )
    return total_steps
