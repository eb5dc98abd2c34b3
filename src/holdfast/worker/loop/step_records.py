"""Step records: what a worker notes of committed steps: progress, metrics, the published loss.

A step may count before the device has computed its loss. Then it is settled later, before the next
step counts, or as soon as something depends on it:

    commit ─▶ advance ─▶ hooks ─▶ state ─▶ line of the metrics
                └── settle: at once if the outcome is known ──┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.worker.membership.member import Member
from holdfast.worker.step.commit import StepCommitted


@dataclass(slots=True, kw_only=True)
class _Open:
    """A step whose line is not written yet.

    Attributes:
        committed: The step.
        record: Content of its line besides the outcome.
        workers: Gives what each member has measured.
        is_settled: True once its outcome is noted.
        is_complete: True once its hooks have run.
    """

    committed: StepCommitted
    record: dict[str, Any]
    workers: Callable[[], Mapping[str, Sequence[float]]]
    is_settled: bool = False
    is_complete: bool = False


class StepRecords:
    """The records of one worker.

    Args:
        member: The worker.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._progress = member.progress
        self._status = member.context.status
        self._open: _Open | None = None

    def begin(
        self,
        committed: StepCommitted,
        record: dict[str, Any],
        workers: Callable[[], Mapping[str, Sequence[float]]],
    ) -> None:
        """Note that a step counts.

        Args:
            committed: The step; the one before is settled.
            record: Content of its line in the metrics besides the outcome.
            workers: Gives what each member has measured; see `worker.timing.breakdown`.
        """
        # One before that is still here was interrupted in its hooks: it has no line.
        self._open = _Open(committed=committed, record=record, workers=workers)
        self._progress.advance(committed.requests)
        if committed.pending is None:
            self.settle()
        else:
            self._progress.pending = {"record": record, "outcome": asdict(committed.pending)}

    def settle(self) -> None:
        """Note the outcome of the newest step; waits for the device.

        Raises:
            NonFiniteError: Its gradient is not finite, and the run is to stop.
        """
        step = self._open
        if step is None or step.is_settled:
            return
        outcome = step.committed.outcome()
        self._progress.settle(step.record, outcome)
        self._status.loss = outcome.loss
        step.is_settled = True
        self._write()

    def complete(self) -> None:
        """Note that the hooks of the newest step have run, and its state is complete."""
        assert self._open is not None, "no step counts"
        self._open.is_complete = True
        self._write()

    def _write(self) -> None:
        step = self._open
        if step is not None and step.is_settled and step.is_complete:
            self._member.metrics.step(step.record, self._member.times.since_last(), step.workers)
            self._open = None
