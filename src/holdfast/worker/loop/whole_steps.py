"""Whole steps: those whose gradient is not compressed, though the job says so.

What compression keeps from the others is no state of the run: a checkpoint lacks it. So a step is
whole if a checkpoint follows it, and one that is asked for waits for a whole step.
"""

from __future__ import annotations

from typing import Any

from holdfast.data.loading.reader import Reader
from holdfast.data.loading.stream import StreamReader
from holdfast.worker.loop.followups import Followups
from holdfast.worker.membership.member import Member
from holdfast.worker.step.commit import StepCommitted


class WholeSteps:
    """Chooses the whole steps of one worker, as all others do.

    Args:
        member: The worker.
        followups: Work of all workers after a commit.
    """

    def __init__(self, member: Member, followups: Followups) -> None:
        self._member = member
        self._followups = followups
        self._compression = member.job.compression

    def begin_step(self, reader: Reader) -> None:
        """Have the stepper send all of the next gradient, if it is to."""
        if self._compression.is_on:
            self._member.joined.stepper.sends_whole = self._is_next_whole(reader)

    def on_commit(self, committed: StepCommitted, record: dict[str, Any]) -> None:
        """Note whether the newest step was compressed, also in its metrics line."""
        if not self._compression.is_on:
            return
        is_compressed = not self._member.joined.stepper.sends_whole
        if is_compressed:
            record["compressed"] = True
        if committed.pending is None and committed.outcome().skipped:
            return  # the error is what it was
        # PyTorch's PowerSGD can send no step whole: no checkpoint waits for one.
        job = self._member.job
        can_send_whole = job.sync != "ddp" or self._compression.method != "powersgd"
        keeps_error = is_compressed and self._compression.error_feedback
        self._member.progress.keeps_error = keeps_error and can_send_whole

    def _is_next_whole(self, reader: Reader) -> bool:
        progress = self._member.progress
        if progress.deferred or progress.step < self._compression.warmup_steps:
            return True
        every_steps = self._member.job.checkpoint.every_steps
        if every_steps and (progress.step + 1) % every_steps == 0:
            return True
        # Of a stream no end is known beforehand.
        return not isinstance(reader, StreamReader) and self._followups.saves_after(reader)
