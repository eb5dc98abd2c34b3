"""Saving: a checkpoint is whole once every member has written its part of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from holdfast.core.actions import Commit
from holdfast.core.protocol import Part, Status, Verdict


class Saving:
    """The checkpoint that a generation is writing, and how the newest one went.

    Attributes:
        verdict: The newest since all began from the disk; None if there is none.
    """

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self._parts: dict[int, Part] = {}

    def begin_anew(self) -> None:
        """Parts of an older generation are of no use."""
        self._parts.clear()

    def restore(self) -> None:
        """All begin from the disk, and perhaps not from the newest checkpoint there was."""
        self.verdict = None

    def hear(self, verdict: Verdict | None) -> None:
        """Learn from an agent what one before us has said."""
        if verdict is not None and (self.verdict is None or _when(verdict) > _when(self.verdict)):
            self.verdict = verdict

    def settles(self, status: Status) -> bool:
        """Whether an agent waits for a verdict that there is.

        What was committed in an older generation is not committed again: some members know of it
        and write nothing.
        """
        verdict = self.verdict
        if verdict is None or all(part.step != verdict.step for part in status.parts.values()):
            return False
        if not verdict.error:
            self.verdict = verdict = replace(verdict, generation=status.generation)
        return verdict.generation == status.generation

    def collect(self, status: Status, members: Collection[int]) -> list[Commit]:
        """Note the parts of a host's workers; the last one asks for the commit."""
        self._parts.update(status.parts)
        if not self._parts or len(self._parts) < len(members):
            return []
        steps = {part.step for part in self._parts.values()}
        assert len(steps) == 1, f"workers write checkpoints of different steps: {sorted(steps)}"
        parts = {rank: self._parts[rank] for rank in sorted(self._parts)}
        self._parts.clear()
        return [Commit(status.generation, steps.pop(), parts)]


def _when(verdict: Verdict) -> tuple[int, int]:
    return verdict.generation, verdict.step
