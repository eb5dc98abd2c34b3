"""Runs a script in torchrun's environment; `holdfast run` is this call."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.api.attended import UNATTENDED, Attendance, attend
from holdfast.api.reserve import reserved
from holdfast.api.result import ScriptResult
from holdfast.errors import JobError
from holdfast.job.script_job import Script, ScriptJob
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS, new_run, restarts_in
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions


def run_script(
    job: ScriptJob,
    options: LaunchOptions,
    *,
    run_dir: Path | None,
    placement: Placement = THIS_HOST,
    attendance: Attendance = UNATTENDED,
    on: str = "",
    address: str = "",
    queue: bool = False,
) -> ScriptResult:
    """Run the script of a job to its end.

    Args:
        job: The job.
        options: Options to start and end its processes.
        run_dir: The run's directory, which may hold an earlier run of the script; by default a new
            one in `runs/`.
        placement: The hosts of the run.
        attendance: Watchers of the run.
        on, address, queue: See `reserved`.

    Raises:
        JobError: There is no such script, or the directory cannot be used.
        WorkerFailed: A worker died or its code raised, and that is not tolerated.
    """
    _check(job.script)
    path = run_dir or new_run(job.name)

    hosts = reserved(job, path, placement, options.controls, on=on, address=address, queue=queue)
    with hosts as there:
        began = time.monotonic()
        conclude = partial(script_result, job.workers, path, began_at=began)
        resume = (path / "job.yaml").exists()
        return attend(job, path, conclude, options, there, attendance, resume=resume)


def script_result(
    workers: int, run_dir: Path, summary: dict[str, Any], began_at: float
) -> ScriptResult:
    """Result of a run, of what a worker has reported.

    Args:
        workers: Their number.
        run_dir: The run's directory.
        summary: The report.
        began_at: Start of the run, seconds of the monotonic clock.
    """
    newest = [*json_lines.last(run_dir / METRICS)[-1:], {}][0]
    return ScriptResult(
        status=summary["status"],
        workers=workers,
        steps=newest.get("step"),
        loss=newest.get("loss"),
        restarts=restarts_in(run_dir),
        seconds=round(time.monotonic() - began_at, 3),
        run_dir=run_dir,
    )


def name_of(script: Script) -> str:
    """The name of a script's job."""
    word = script.module or Path(script.path or "").stem
    return re.sub(r"[^A-Za-z0-9._-]", "-", word).lstrip("._-") or "script"


def _check(script: Script) -> None:
    """Raises: JobError: There is no such script."""
    if script.path is not None and not Path(script.path).is_file():
        raise JobError(f"script {script.path!r} not found; pass a file or -m MODULE")
    if script.module is not None:
        package = script.module.partition(".")[0]
        if package in ("", "__main__") or not _can_be_imported(package):
            name = package or script.module
            raise JobError(f"module {name!r} not found, neither here nor installed")


def _can_be_imported(package: str) -> bool:
    path = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        return find_spec(package) is not None
    finally:
        sys.path[:] = path
