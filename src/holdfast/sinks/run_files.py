"""RunFiles: keeps recovery reports, the result and the loss curve in the run's directory."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from holdfast.record import recovery_reports
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.sink import Ending, Sink
from holdfast.rundir.json_lines import JsonLines
from holdfast.rundir.run_directory import METRICS, RECOVERIES, RESULT
from holdfast.sinks import loss_curve


class RunFiles(Sink):
    """Writes `recoveries.jsonl`, `result.json` and `loss.png`.

    Args:
        run_dir: The run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def on_recovery(self, report: RecoveryReport) -> None:
        """Append the report."""
        with suppress(OSError), JsonLines(self._run_dir / RECOVERIES) as file:  # the disk is full
            file.write(**recovery_reports.plain(report))

    def close(self, ending: Ending | None) -> None:
        """Write the result, if there is one, and draw its losses."""
        if ending is not None and ending.result:
            (self._run_dir / RESULT).write_text(json.dumps(ending.result, indent=1) + "\n")
            if ending.result.get("steps"):  # a script may keep its own files
                loss_curve.draw(self._run_dir / METRICS, self._run_dir / "loss.png")
