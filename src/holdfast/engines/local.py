"""The local engine: a run on this machine, of which nothing is left but its directory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from holdfast.agent.forks import ForkServer
from holdfast.agent.spawn import Spawned
from holdfast.checkpoint import manifest
from holdfast.engines.controls import Controls
from holdfast.engines.supervision import Supervision
from holdfast.errors import HoldfastError, JobError
from holdfast.job.spec import Job
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import RunDirectory
from holdfast.wire.lifeline import STOP_SIGNALS


def run(
    job: Job,
    directory: RunDirectory,
    controls: Controls,
    forks: ForkServer | Spawned | None = None,
) -> dict[str, Any]:
    """Run `job` in `directory`, from its newest good checkpoint if it has any.

    Args:
        job: What to do.
        directory: The run's directory, held by this process.
        controls: How to stop it; the signals in STOP_SIGNALS do too, and abort it when repeated.
        forks: A fork server to use as long as it lives, or one that is on its way and for this run
            alone; by default one is started.

    Returns:
        What rank 0 reports: steps, loss, evaluation, throughput, hash of the weights.

    Raises:
        JobError: The job cannot be run.
        WorkerFailed: A worker died or raised.
        HoldfastError: Anything else that ended the run.
    """
    try:
        manifest.sweep(directory.checkpoints)
    except OSError as error:
        raise JobError(f"{error.filename}: {error.strerror}; remove it by hand") from None
    try:
        return _run(job, directory, controls, forks)
    except OSError as error:
        if error.filename is None:
            raise
        raise JobError(
            f"{error.filename}: {error.strerror}; mend that, or name another run directory"
        ) from None
    finally:
        with suppress(OSError):  # the next start tries again
            manifest.sweep(directory.checkpoints)


def _run(
    job: Job,
    directory: RunDirectory,
    controls: Controls,
    forks: ForkServer | Spawned | None,
) -> dict[str, Any]:
    for old in directory.path.glob("coordinator.*"):
        old.unlink()  # the facts of an earlier attempt are of no use to this one
    with (
        EventLog(directory.path / "events.jsonl") as log,
        _stop_on_signals(controls, "after this step" if job.script is None else "the script"),
    ):
        log.event("run-started", workers=job.workers)
        try:
            with Supervision(job, directory, forks, log, controls) as supervision:
                result = supervision.result()
        except HoldfastError as error:
            log.event("run-failed", error=type(error).__name__, message=str(error))
            raise
        log.event("run-ended", status=result["status"], steps=result.get("steps"))
    return result


@contextmanager
def _stop_on_signals(controls: Controls, what: str) -> Iterator[None]:
    """Have signals stop the run, and abort it when they come again."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        controls.abort = controls.stop
        controls.stop = True
        with suppress(OSError):  # whoever read it may have got the same signal
            os.write(
                2, f"stopping {what}; once more to abort\n".encode()
            )  # print may be interrupted

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
