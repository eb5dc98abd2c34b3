"""Follower: keeps, shows and sends what is to be told of a run while it is under way.

It reads what the run's processes write down, from the side: none of them waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.job.spec import Job
from holdfast.observe import lines, recovery_reports
from holdfast.observe.lines import JsonLines, Tail
from holdfast.observe.notify import Notifier
from holdfast.observe.recovery_reports import RecoveryReport
from holdfast.observe.recovery_tracker import RecoveryTracker
from holdfast.observe.run_dir import EVENTS, METRICS, RECEIPTS

NOTIFIED_LINES: Final = 3
"""How much of a receipt is sent: what was lost, what became of the others, how long it took."""


class Follower:
    """That of one run, from its beginning.

    Args:
        path: The run's directory.
        job: What it does.
        tell: Called with what people are to see.
        notifier: Sends what they are to hear elsewhere.
    """

    def __init__(
        self, path: Path, job: Job, tell: Callable[[str], None], notifier: Notifier
    ) -> None:
        self._path, self._tell, self._notifier = path, tell, notifier
        self._receipts = path / RECEIPTS
        self._metrics = path / METRICS if job.records_progress else None
        self._events, self._news = Tail(path / EVENTS), list[dict[str, Any]]()
        kept = lines.last(self._receipts)
        numbers = [each["number"] for each in kept if isinstance(each.get("number"), int)]
        self._reckoning = RecoveryTracker(max(numbers, default=0), tells_steps=job.records_progress)

    def watch(self) -> None:
        """See to what has happened since the last call."""
        with suppress(OSError):  # what can not be read now is read later
            self._news += self._events()
            if self._news or self._reckoning.is_open:
                steps = lines.last(self._metrics) if self._metrics is not None else []
                news, self._news = self._news, []
                for receipt in self._reckoning.see(news, steps):
                    self._keep(receipt)
        self._notifier.settle(self._path, lambda line: self._tell(f"holdfast: {line}"))

    def _keep(self, receipt: RecoveryReport) -> None:
        with suppress(OSError), JsonLines(self._receipts) as file:  # the disk is full
            file.write(**recovery_reports.ADAPTER.dump_python(receipt, mode="json"))
        text = recovery_reports.text(receipt, self._path / "logs")
        self._tell(text)
        if receipt.outcome in ("recovered", "restarted"):
            self._notifier.send("recovered", "\n".join(text.splitlines()[:NOTIFIED_LINES]))
