"""Commit hooks: what happens on every worker once for each committed step."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch.optim import Optimizer

ScheduleFactory = Callable[[int], Callable[[int], float]]
"""From the number of steps of the run to a function from a step to the learning rate's factor."""


class CommitHooks:
    """Those of one worker.

    Attributes:
        running: Whether a callback is being called.
    """

    def __init__(self) -> None:
        self.running = False
        self._callbacks: list[Callable[[], object]] = []
        self._optimizer: Optimizer | None = None
        self._base_rates: list[float] = []
        self._schedule: ScheduleFactory | None = None
        self._factor: Callable[[int], float] | None = None

    def add(self, callback: Callable[[], object]) -> None:
        """Call `callback` after every commit, after those added before."""
        self._callbacks.append(callback)

    def follow(self, optimizer: Optimizer, schedule: ScheduleFactory | None) -> None:
        """Set the learning rates of `optimizer` by `schedule`, if there is one."""
        self._optimizer, self._schedule = optimizer, schedule
        # Copies: a rate that is a tensor is written to when a state is restored.
        self._base_rates = [copy.deepcopy(group["lr"]) for group in optimizer.param_groups]

    def begin(self, total_steps: int, step: int) -> None:
        """Get ready for a run of `total_steps`, of which `step` are committed."""
        self._factor = self._schedule(total_steps) if self._schedule else None
        self.set_rates(step)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the optimizer's first parameter group."""
        assert self._optimizer is not None
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def has_callbacks(self) -> bool:
        """Whether there is anything to call."""
        return bool(self._callbacks)

    def call(self) -> None:
        """Call what is due after a commit."""
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
