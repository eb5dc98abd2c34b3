"""The simulated disk of a host: which checkpoints it holds. It outlives the agents of the host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.core import actions, events
from holdfast.core.protocol import Draft, StoredCheckpoint


@dataclass(slots=True, eq=False)
class SimulatedDisk:
    """The checkpoints of one host.

    Attributes:
        steps: Those that are published.
        is_full: True if nothing can be written to it.
    """

    steps: set[int] = field(default_factory=set)
    is_full: bool = False
    _drafts: dict[tuple[int, int], Draft] = field(default_factory=dict)

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
                draft = Draft(number=part.number, step=part.step, error="the disk is full")
                if not self.is_full:
                    draft = replace(draft, root=f"state {part.step}", error="")
                self._drafts[generation, part.number] = draft
                return events.CheckpointPrepared(generation, draft)
            case actions.KeepSnapshot():
                return None
            case actions.CompleteCheckpoint(result):
                draft = self._drafts.pop((result.generation, result.number))
                error = draft.error or result.error
                if not error:
                    self.steps.add(draft.step)
                return events.CheckpointCompleted(replace(result, error=error))

    def make_space(self) -> None:
        """Let it be written to again."""
        self.is_full = False

    def lose_drafts(self) -> None:
        """Lose what is not published yet: only the agent that was lost knows of it."""
        self._drafts.clear()

    def damage_newest(self) -> None:
        """Damage the newest checkpoint, if there is an older one: it is quarantined."""
        if len(self.steps) > 1:
            self.steps.remove(self.newest)

    def _publish_before(self, generation: int) -> None:
        """Publish the drafts of generations that are over."""
        for key in sorted(self._drafts):
            if key[0] < generation and not (draft := self._drafts.pop(key)).error:
                self.steps.add(draft.step)
