"""Saving: a checkpoint is whole once every member has written its part of it."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.actions import Commit
from holdfast.core.protocol import Part, Status, Verdict


class Saving:
    """The checkpoint that a generation is writing, and how the newest one went.

    Attributes:
        verdict: The newest; None if there is none.
    """

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self._parts: dict[int, Part] = {}

    def begin_anew(self) -> None:
        """Parts of an older generation are of no use."""
        self._parts.clear()

    def hear(self, verdict: Verdict | None) -> None:
        """Learn from an agent what one before us has said."""
        if verdict is not None and (self.verdict is None or _when(verdict) > _when(self.verdict)):
            self.verdict = verdict

    def is_settled(self, status: Status) -> bool:
        """Whether an agent waits for a verdict that there is."""
        verdict = self.verdict
        return (
            verdict is not None
            and verdict.generation == status.generation
            and any(part.number <= verdict.number for part in status.parts.values())
        )

    def collect(self, status: Status, members: Collection[int]) -> list[Commit]:
        """Note the parts of a host's workers; the last one asks for the commit."""
        self._parts.update(status.parts)
        newest = max((part.number for part in self._parts.values()), default=0)
        parts = {rank: part for rank, part in sorted(self._parts.items()) if part.number == newest}
        if not parts or len(parts) < len(members):
            return []
        self._parts.clear()
        step = next(iter(parts.values())).step
        return [Commit(status.generation, newest, step, parts)]


def _when(verdict: Verdict) -> tuple[int, int]:
    return verdict.generation, verdict.number
