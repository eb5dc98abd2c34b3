"""Saving: the checkpoints of one host from the first part that is staged to their results. Pure.

    parts of all workers ─▶ PrepareCheckpoint ─▶ draft, reported ─▶ result ─▶ CompleteCheckpoint

Workers train meanwhile, so a second checkpoint may be staged before the first one has a result.
Drafts are reported one at a time, in order: every host reports the same one.

What is staged is the state after a committed step, and no recovery takes that back. So a checkpoint
that all workers of the host have staged outlives its generation: it is written, and as nothing can
be decided about it any more, each host publishes it by itself. If a worker was lost before, the
workers are asked for another one.

The newest snapshot is kept in memory, and written if no worker is left that has a state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from holdfast.core.actions import CompleteCheckpoint, KeepSnapshot, PrepareCheckpoint
from holdfast.core.events import PartStaged
from holdfast.core.protocol import CheckpointPart, CheckpointResult, Draft

_Key = tuple[int, int]
"""A generation, and the number of a checkpoint in it."""


class Saving:
    """Checkpoints of one agent that are not published yet.

    Attributes:
        result: The newest result.
    """

    def __init__(self) -> None:
        self.result: CheckpointResult | None = None
        self._staged: dict[_Key, dict[int, CheckpointPart]] = {}
        self._drafts: deque[Draft] = deque()
        self._snapshot: PrepareCheckpoint | None = None
        self._oldest = 0

    @property
    def draft(self) -> Draft | None:
        """The oldest draft of this generation without a result."""
        return self._drafts[0] if self._drafts else None

    @property
    def is_incomplete(self) -> bool:
        """True if some workers have staged a checkpoint that others have not."""
        staged = (part for parts in self._staged.values() for part in parts.values())
        return any(not part.in_memory for part in staged)

    def on_staged(self, event: PartStaged) -> list[PrepareCheckpoint | KeepSnapshot]:
        """Take note of a part; parts come until their workers have halted or exited."""
        generation = event.generation
        part = event.part
        if generation < self._oldest:
            return []
        parts = self._staged.setdefault((generation, part.number), {})
        parts[event.rank] = part
        if len(parts) < part.count:
            return []
        # All workers of the host have staged it: no failure can take it back any more.
        del self._staged[generation, part.number]
        complete = PrepareCheckpoint(generation, dict(sorted(parts.items())))
        # What is written to disk is newer than the snapshot, which is of no more use.
        if not part.in_memory:
            self._snapshot = None
            return [complete]
        self._snapshot = complete
        return [KeepSnapshot(generation, part.number)]

    def write_snapshot(self) -> list[PrepareCheckpoint]:
        """Write the snapshot, if there is one that is newer than what is written."""
        snapshot = self._snapshot
        self._snapshot = None
        return [] if snapshot is None else [snapshot]

    def on_prepared(self, draft: Draft) -> None:
        """Take note of a draft of this generation."""
        self._drafts.append(draft)

    def on_result(self, result: CheckpointResult) -> list[CompleteCheckpoint]:
        """Take note of a result of this generation; returns what to do with its draft."""
        completed = list[CompleteCheckpoint]()
        while self._drafts and self._drafts[0].number <= result.number:
            # A host that missed a result has older drafts: all but the newest of them have failed.
            draft = self._drafts.popleft()
            self.result = result
            if draft.number < result.number:
                unknown = "another checkpoint was decided first"
                result_of = replace(result, number=draft.number, step=draft.step, error=unknown)
                completed.append(CompleteCheckpoint(result_of))
            else:
                completed.append(CompleteCheckpoint(result))
        return completed

    def end_generation(self) -> None:
        """Expect no result any more for the drafts of the generation."""
        self._drafts.clear()

    def begin_generation(self, generation: int) -> None:
        """Note that the workers resume in a generation, so older ones stage nothing more."""
        # What some workers have staged and others have not can never be complete.
        self._oldest = generation
        self._snapshot = None
        self._staged.clear()
