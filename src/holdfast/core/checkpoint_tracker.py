"""Saving: when a checkpoint is due, and when it is whole: once every member has written its part.

Workers begin checkpoints by themselves too, after so many steps, say. Each counts as the one that
is asked for, since it has the number after the newest one of which it is known how it went.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.actions import CommitCheckpoint
from holdfast.core.protocol import CheckpointResult, Part, Status


class CheckpointTracker:
    """The checkpoint that a generation is writing, and how the newest one went.

    Args:
        every_s: How long after one the next is asked for, seconds; 0 for never.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        verdict: The newest; None if there is none.
        asked: The number of the checkpoint that is asked for; 0 for none. See `Part`.
    """

    def __init__(self, every_s: float, now: float) -> None:
        self.result: CheckpointResult | None = None
        self.requested = 0
        self._every_s, self._due = every_s, now + every_s
        self._number, self._parts = 0, dict[int, Part]()
        self._committing = 0

    def on_generation_opened(self) -> None:
        """Parts of an older generation are of no use, and nobody there is asked any more."""
        self._number, self._parts = 0, {}
        self.requested = self._committing = 0

    def next_deadline(self) -> float | None:
        """When the next checkpoint is to be asked for; None if none is."""
        return self._due if self._every_s and not self.requested else None

    def request_if_due(self, generation: int, now: float) -> bool:
        """Ask for a checkpoint, if it is time to; returns whether it is."""
        due = self.next_deadline()
        if due is None or now < due:
            return False
        last = self.result
        self.requested = 1 + (last.number if last and last.generation == generation else 0)
        return True

    def on_completed(self, verdict: CheckpointResult, now: float) -> None:
        """Note how a checkpoint went; if it failed, it is tried again when the next is due."""
        self.result, self.requested, self._due = verdict, 0, now + self._every_s

    def on_reported_result(self, verdict: CheckpointResult | None) -> None:
        """Learn from an agent what one before us has said."""
        if verdict is not None and (self.result is None or _when(verdict) > _when(self.result)):
            self.result = verdict

    def has_result_for(self, status: Status) -> bool:
        """Whether an agent waits for a verdict that there is."""
        verdict = self.result
        return (
            verdict is not None
            and verdict.generation == status.generation
            and any(part.number <= verdict.number for part in status.parts.values())
        )

    def collect(self, status: Status, members: Collection[int]) -> list[CommitCheckpoint]:
        """Note the parts of a host's workers; the last one asks for the commit, once.

        Agents report the same parts at every heartbeat until they have heard the result.
        """
        for rank, part in status.parts.items():
            if part.number <= self._committing:
                continue
            if part.number > self._number:
                self._number, self._parts = part.number, {}
            if part.number == self._number:
                self._parts[rank] = part
        if not self._parts or len(self._parts) < len(members):
            return []
        parts, self._parts = dict(sorted(self._parts.items())), {}
        self._committing = self._number
        step = next(iter(parts.values())).step
        return [CommitCheckpoint(status.generation, self._number, step, parts)]


def _when(verdict: CheckpointResult) -> tuple[int, int]:
    return verdict.generation, verdict.number
