"""W&B: a run of Weights & Biases, or of its offline mode, which writes below the run directory.

Its library has a spool of its own. A batch counts as sent once that has it. Rows have the step as
their number; W&B takes none twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from holdfast.sinks.trackers.tracker import Batch, TrackedRun

_ENVIRONMENT: Final = {
    "DO_NOT_TRACK": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}


class Wandb:
    """Sends to one run of W&B; see `Tracker`. Its own monitor samples the host.

    Args:
        project: Name of the project.
    """

    name = "wandb"
    takes_files = True

    def __init__(self, project: str) -> None:
        self.kept: dict[str, Any] = {"step": 0}
        self._project = project
        self._run: Any = None
        self._artifact = ""

    def open(self, run: TrackedRun, kept: Mapping[str, Any]) -> bool:
        """Begin the run, or continue it by its id."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import wandb

        self.kept["step"] = kept.get("step", 0)
        self._artifact = f"run-{run.run_id}"
        self._run = wandb.init(
            id=run.run_id,
            name=run.name,
            group=run.search,
            project=self._project,
            dir=str(run.path),
            resume="allow",
            config={**run.job.params, "environment": dict(run.tags)},
            settings=wandb.Settings(silent=True, console="off"),
        )
        return True

    def send(self, batch: Batch) -> None:
        """Hand over a row per step: recoveries are in that of the newest step."""
        points = [point for point in batch.points if not point.name.startswith("system/")]
        for (group, step), same in groupby(
            points, lambda point: (point.name.partition("/")[0], point.step)
        ):
            values = {point.name: point.value for point in same}
            if group == "recovery":
                values["recovery/number"] = step
            else:
                self.kept["step"] = max(step, self.kept["step"])
            self._run.log(values, step=self.kept["step"])

    def finish(self, status: str, files: Sequence[Path]) -> None:
        """Hand over the files, end the run, and wait until the library has sent all of it."""
        import wandb

        artifact = wandb.Artifact(self._artifact, type="run")
        for path in files:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)
        self._end(0 if status == "finished" else 1)

    def close(self) -> None:
        """End the run, if it has not been."""
        self._end(1)

    def _end(self, status: int) -> None:
        run = self._run
        self._run = None
        if run is not None:
            run.finish(exit_code=status)
