"""Commit hooks: callbacks that run on every worker once per committed step."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch.optim import Optimizer

from holdfast.errors import JobError

ScheduleFactory = Callable[[int], Callable[[int], float]]
"""Gets the steps of the run; returns a function from a step to the learning rate factor."""


class CommitHooks:
    """The commit hooks of one worker.

    Attributes:
        running: Whether a callback is running.
    """

    def __init__(self) -> None:
        self.running = False
        self._callbacks: list[Callable[[], object]] = []
        self._optimizer: Optimizer | None = None
        self._base_rates: list[float] = []
        self._schedule: ScheduleFactory | None = None
        self._factor: Callable[[int], float] | None = None

    def add(self, callback: Callable[[], object]) -> None:
        """Call `callback` after every commit, in the order of addition."""
        self._callbacks.append(callback)

    def follow(self, optimizer: Optimizer, schedule: ScheduleFactory | None) -> None:
        """Set the learning rates of `optimizer` by `schedule`, unless that is None."""
        self._optimizer, self._schedule = optimizer, schedule
        # Copies: restoring a state writes to a rate that is a tensor.
        self._base_rates = [copy.deepcopy(group["lr"]) for group in optimizer.param_groups]

    def begin(self, total_steps: int, step: int) -> None:
        """Prepare for a run of `total_steps`, of which `step` are committed.

        Raises:
            JobError: There is a schedule, and `total_steps` is 0: not known.
        """
        if self._schedule and not total_steps:
            raise JobError(
                "a schedule needs the number of steps, and a stream does not tell; give "
                "session.shards steps=…"
            )
        self._factor = self._schedule(total_steps) if self._schedule else None
        self.set_rates(step)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the optimizer's first parameter group."""
        assert self._optimizer is not None
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def has_callbacks(self) -> bool:
        """Whether there are callbacks."""
        return bool(self._callbacks)

    def call(self) -> None:
        """Call all callbacks."""
        self.running = True
        try:
            for callback in self._callbacks:
                callback()
        finally:
            self.running = False

    def set_rates(self, step: int) -> None:
        """Set the learning rates for the next step, when `step` are committed."""
        if self._factor is not None:
            assert self._optimizer is not None
            groups = self._optimizer.param_groups
            for group, rate in zip(groups, self._base_rates, strict=True):
                group["lr"] = rate * self._factor(step)
