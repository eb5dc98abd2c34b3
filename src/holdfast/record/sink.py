"""Sink: receives the progress, the recovery reports and the end of a run.

    coordinator ── run state ──▶ Follower ── on_progress ──▶ terminal, files, notifications
    events.jsonl, metrics.jsonl ──▶       ── on_line ──────▶ your own function
                                          ── on_recovery ──▶

Sinks run in the command's process. No worker waits for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.record.recovery_reports import RecoveryReport
from holdfast.wire.rpc import RunStateMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """End of a run.

    Attributes:
        status: `finished`, `stopped` or `failed`.
        result: Result of the run, as plain data; empty if it failed.
        error: Why it failed; empty if it did not.
    """

    status: str
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class Sink:
    """A sink of one run. It overrides what it needs: here, nothing is done."""

    def on_progress(self, state: RunStateMessage) -> None:
        """Take the newest state; called about ten times a second, whether it has changed or not."""

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Take a new line of `events.jsonl` or `metrics.jsonl`; each step and evaluation once."""

    def on_recovery(self, report: RecoveryReport) -> None:
        """Take the report of a recovery that is over."""

    def close(self, ending: Ending | None) -> None:
        """Take the run's end; None if the command itself was interrupted.

        Raises:
            OSError: A file that should be kept cannot be written.
        """
