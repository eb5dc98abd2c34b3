"""The simulated disk of a host: which checkpoints it holds. It outlives the agents of the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core import actions, events
from holdfast.core.protocol import Draft, StoredCheckpoint


@dataclass(slots=True, eq=False)
class SimulatedDisk:
    """The checkpoints of one host.

    Attributes:
        steps: Those that are published.
    """

    steps: set[int] = field(default_factory=set)

    @property
    def newest(self) -> int:
        """The step of the newest; 0 if there is none."""
        return max(self.steps, default=0)

    def perform(self, action: actions.CheckpointAction) -> events.CheckpointEvent | None:
        """Perform an action of an agent; returns its result, if it has one."""
        match action:
            case actions.FindCheckpoint(generation):
                step = self.newest
                found = StoredCheckpoint(step=step, name=f"step-{step:08d}") if step else None
                return events.CheckpointFound(generation, found)
            case actions.RemovePartialCheckpoints():
                return None  # a draft is not kept here
            case actions.PrepareCheckpoint(generation, parts):
                part = next(iter(parts.values()))
                draft = Draft(number=part.number, step=part.step, root=f"state {part.step}")
                return events.CheckpointPrepared(generation, draft)
            case actions.CompleteCheckpoint(result):
                if not result.error:
                    self.steps.add(result.step)
                return events.CheckpointCompleted(result)
