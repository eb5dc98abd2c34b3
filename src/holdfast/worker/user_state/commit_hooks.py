"""Commit hooks: what runs on every worker once per committed step, schedules included."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.worker.user_state.schedule import Schedule


class CommitHooks:
    """The commit hooks of one worker.

    Attributes:
        running: True if a commit hook is running.
        in_gradients: True if a gradient hook is running.
        on_gradients: Gradient hooks, which are called before the optimizers are stepped.
        schedules: Set the learning rates, one for each optimizer.
    """

    def __init__(self) -> None:
        self.running = False
        self.in_gradients = False
        self.schedules: list[Schedule] = []
        self.on_gradients: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[], object]] = []

    def add(self, callback: Callable[[], object]) -> None:
        """Call `callback` after every commit, in the order of addition."""
        self._callbacks.append(callback)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first optimizer's first parameter group."""
        return self.schedules[0].learning_rate

    @property
    def has_callbacks(self) -> bool:
        """True if there are callbacks."""
        return bool(self._callbacks)

    def call(self) -> None:
        """Call all callbacks."""
        self.running = True
        try:
            for callback in self._callbacks:
                callback()
        finally:
            self.running = False

    def call_on_gradients(self) -> None:
        """Call all gradient hooks."""
        self.in_gradients = True
        try:
            for callback in self.on_gradients:
                callback()
        finally:
            self.in_gradients = False
