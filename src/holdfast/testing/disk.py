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
    _drafts: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The step of the newest; 0 if there is none."""
        return max(self.steps, default=0)

    def perform(self, action: actions.CheckpointAction) -> events.CheckpointEvent | None:
        """Perform an action of an agent; returns its result, if it has one."""
        match action:
            case actions.FindCheckpoint(generation):
                self._publish_before(generation)
                step = self.newest
                found = StoredCheckpoint(step=step, name=f"step-{step:08d}") if step else None
                return events.CheckpointFound(generation, found)
            case actions.RemovePartialCheckpoints(generation):
                self._publish_before(generation)
                return None
            case actions.PrepareCheckpoint(generation, parts):
                part = next(iter(parts.values()))
                self._drafts[generation, part.number] = part.step
                draft = Draft(number=part.number, step=part.step, root=f"state {part.step}")
                return events.CheckpointPrepared(generation, draft)
            case actions.CompleteCheckpoint(result):
                step = self._drafts.pop((result.generation, result.number))
                if not result.error:
                    self.steps.add(step)
                return events.CheckpointCompleted(result)

    def _publish_before(self, generation: int) -> None:
        """Publish the drafts of generations that are over."""
        for key in sorted(self._drafts):
            if key[0] < generation:
                self.steps.add(self._drafts.pop(key))
