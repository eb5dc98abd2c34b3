"""Checkpoint tracker: when a checkpoint is due, and when every host has written it.

Every host writes the whole state. A checkpoint counts if at least one host has it, and if all that
have it have written the same state.

Workers also begin checkpoints by themselves, after a number of steps, say. Such a checkpoint counts
as the one that was requested: it has the number after the newest one whose result is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.core.checkpoints.interval import CheckpointInterval
from holdfast.core.protocol import CheckpointResult, Draft, ResumePoint, Status


class CheckpointTracker:
    """Tracks the checkpoint that a generation writes, and the result of the newest one.

    Args:
        every_s: Time after one until the next is requested, seconds; 0 for never, None for as long
            as costs least.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        result: The newest result; None if there is none.
        requested: The number of the checkpoint that is requested; 0 for none. See `CheckpointPart`.
    """

    def __init__(self, every_s: float | None, now: float) -> None:
        self.result: CheckpointResult | None = None
        self.requested = 0
        self._interval = CheckpointInterval(every_s, now)
        self._has_resumed = False
        self._is_timed = every_s != 0
        self._due = now + self._interval.seconds(now)
        self._drafts: dict[str, Draft] = {}  # of one number, by host

    def on_generation_opened(self) -> None:
        """Drop the drafts and the request of the generation before."""
        self._drafts.clear()
        self.requested = 0

    def on_resumed(self, generation: int, statuses: Iterable[Status], point: ResumePoint) -> None:
        """Take note that a generation resumes.

        It is asked for a checkpoint if some host has lost one that was begun before.
        """
        if any(status.lost_checkpoint for status in statuses):
            self._request(generation)
        if self._has_resumed and not point.donors:
            self._interval.on_restored()
        self._has_resumed = True

    def next_deadline(self) -> float | None:
        """Time at which to request the next checkpoint; None for never."""
        return self._due if self._is_timed and not self.requested else None

    def request_if_due(self, generation: int, now: float) -> bool:
        """Request a checkpoint if it is due; returns whether it is."""
        due = self.next_deadline()
        if due is None or now < due:
            return False
        self._request(generation)
        return True

    def on_reported_result(self, result: CheckpointResult | None) -> None:
        """Take over a newer result that a predecessor has sent to an agent."""
        if result is not None and (self.result is None or _when(result) > _when(self.result)):
            self.result = result

    def has_result_for(self, status: Status) -> bool:
        """True if an agent still waits for a result that is known."""
        result = self.result
        return (
            result is not None
            and result.generation == status.generation
            and status.draft is not None
            and status.draft.number <= result.number
        )

    def collect(self, status: Status, hosts: Collection[str], now: float) -> bool:
        """Record the draft of a host; returns whether the result is known by this, the last one.

        Agents report the same draft at every heartbeat until they have the result. If the
        checkpoint has failed, the next one is requested when it is due.
        """
        draft = status.draft
        if draft is None or self.has_result_for(status):
            return False
        # Hosts may be a checkpoint apart: a draft with a higher number ends the wait for the lower.
        newest = max((each.number for each in self._drafts.values()), default=0)
        if draft.number > newest:
            self._drafts.clear()
        if draft.number >= newest:
            self._drafts[status.host] = draft
        if not self._drafts.keys() >= set(hosts):
            return False
        # All hosts have reported this number: its result is decided once and for all.
        self.result = _result(status.generation, self._drafts)
        drafts = self._drafts.values()
        if not self.result.error:
            write_s = max(draft.write_s for draft in drafts)
            self._interval.on_saved(max(draft.stall_s for draft in drafts), write_s)
        self._drafts.clear()
        self.requested = 0
        self._due = now + self._interval.seconds(now)
        return True

    def _request(self, generation: int) -> None:
        """Request the checkpoint after the newest one of a generation whose result is known."""
        last = self.result
        self.requested = 1 + (last.number if last and last.generation == generation else 0)


def _result(generation: int, drafts: Mapping[str, Draft]) -> CheckpointResult:
    """Result of the drafts of all hosts."""
    any_draft = next(iter(drafts.values()))
    roots = {host: draft.root for host, draft in drafts.items() if not draft.error}
    if not roots:
        error = any_draft.error
    elif len(set(roots.values())) > 1:
        error = f"hosts have written different states: {', '.join(sorted(roots))}"
    else:
        error = ""
    return CheckpointResult(
        generation=generation, number=any_draft.number, step=any_draft.step, error=error
    )


def _when(result: CheckpointResult) -> tuple[int, int]:
    return result.generation, result.number
