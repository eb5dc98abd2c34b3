"""Controls: how others speak to a run that is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.arena.memory import Arena


@dataclass(slots=True, kw_only=True)
class Controls:
    """Set by whoever asked for the run, looked at about ten times a second.

    Attributes:
        stop: Ends the run after the step in hand, with a checkpoint.
        abort: Ends the run at once.
        watch: Called with the arena.
    """

    stop: bool = False
    abort: bool = False
    watch: Callable[[Arena], None] | None = None
