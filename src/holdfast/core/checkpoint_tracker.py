"""Checkpoint tracker: when a checkpoint is due, and when every member has written its part.

Workers also begin checkpoints by themselves, after a number of steps, say. Such a checkpoint counts
as the one that was requested: it has the number after the newest one whose result is known.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.actions import CommitCheckpoint
from holdfast.core.protocol import CheckpointResult, Part, Status


class CheckpointTracker:
    """Tracks the checkpoint that a generation writes, and the result of the newest one.

    Args:
        every_s: How long after one the next is requested, seconds; 0 for never.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        result: The newest result; None if there is none.
        requested: The number of the checkpoint that is requested; 0 for none. See `Part`.
    """

    def __init__(self, every_s: float, now: float) -> None:
        self.result: CheckpointResult | None = None
        self.requested = 0
        self._every_s, self._due = every_s, now + every_s
        self._number, self._parts = 0, dict[int, Part]()
        self._committing = 0

    def on_generation_opened(self) -> None:
        """Drop the parts and the request of the generation before."""
        self._number, self._parts = 0, {}
        self.requested = self._committing = 0

    def next_deadline(self) -> float | None:
        """When to request the next checkpoint; None for never."""
        return self._due if self._every_s and not self.requested else None

    def request_if_due(self, generation: int, now: float) -> bool:
        """Request a checkpoint if it is due; returns whether it is."""
        due = self.next_deadline()
        if due is None or now < due:
            return False
        last = self.result
        self.requested = 1 + (last.number if last and last.generation == generation else 0)
        return True

    def on_completed(self, result: CheckpointResult, now: float) -> None:
        """Record the result of a checkpoint; if it failed, the next one is requested when due."""
        self.result, self.requested, self._due = result, 0, now + self._every_s

    def on_reported_result(self, result: CheckpointResult | None) -> None:
        """Take over a newer result that a predecessor has sent to an agent."""
        if result is not None and (self.result is None or _when(result) > _when(self.result)):
            self.result = result

    def has_result_for(self, status: Status) -> bool:
        """Whether an agent still waits for a result that is known."""
        result = self.result
        return (
            result is not None
            and result.generation == status.generation
            and any(part.number <= result.number for part in status.parts.values())
        )

    def collect(self, status: Status, members: Collection[int]) -> list[CommitCheckpoint]:
        """Record the parts of a host's workers; with the last part, returns the commit, once.

        Agents report the same parts at every heartbeat until they have the result.
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


def _when(result: CheckpointResult) -> tuple[int, int]:
    return result.generation, result.number
