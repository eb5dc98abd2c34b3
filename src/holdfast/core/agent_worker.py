"""Agent worker: what an agent's state machine knows of one of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class AgentWorker:
    """A worker process.

    Attributes:
        process: Its number.
        resumed_generation: The newest generation in which it was resumed, as a member.
        halted_generation: The newest generation in which it has halted.
        committed, reduced_step, address, numerics, left: Values of its
            `WorkerHalted`.
    """

    process: int
    resumed_generation: int = 0
    halted_generation: int = 0
    committed: int | None = None
    reduced_step: int = 0
    address: str = ""
    numerics: Mapping[str, str] = field(default_factory=dict)
    left: int | None = None

    @property
    def has_left(self) -> bool:
        """True if it has halted since it was a member."""
        return self.halted_generation > self.resumed_generation
