"""Commit hooks: what runs on every worker once per committed step, schedules included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from holdfast.worker.user_state.schedule import Schedule

When = Literal["gradients", "commit"]
"""Before the optimizers are stepped, or after it."""


class CommitHooks:
    """The hooks of one worker.

    Attributes:
        running: The hooks that are running; None between them.
        schedules: Set the learning rates, one for each optimizer.
    """

    def __init__(self) -> None:
        self.running: When | None = None
        self.schedules: list[Schedule] = []
        self._callbacks: dict[When, list[Callable[[], object]]] = {"gradients": [], "commit": []}

    def add(self, when: When, callback: Callable[[], object]) -> None:
        """Call `callback` in every step, in the order of addition."""
        self._callbacks[when].append(callback)

    def add_first(self, when: When, callbacks: list[Callable[[], None]]) -> None:
        """Call `callbacks` in every step, before all others."""
        self._callbacks[when][:0] = callbacks

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first optimizer's first parameter group."""
        return self.schedules[0].learning_rate

    def has_callbacks(self, when: When) -> bool:
        """True if there are callbacks."""
        return bool(self._callbacks[when])

    def call(self, when: When) -> None:
        """Call all callbacks."""
        self.running = when
        try:
            for callback in self._callbacks[when]:
                callback()
        finally:
            self.running = None
