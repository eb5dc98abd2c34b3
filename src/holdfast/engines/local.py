"""The local engine: a run on this machine, of which nothing is left but its directory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from holdfast.checkpoint import manifest
from holdfast.engines.controls import Controls, stopped_by_signals
from holdfast.engines.process_supervisor import ProcessSupervisor
from holdfast.errors import HoldfastError, JobError
from holdfast.job.spec import Job
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import EVENTS, RunDirectory


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
        EventLog(directory.path / EVENTS) as log,
        stopped_by_signals(controls, "after this step" if job.records_progress else "the script"),
    ):
        log.event("run-started", workers=job.workers)
        try:
            with ProcessSupervisor(job, directory, forks, log, controls) as supervision:
                result = supervision.result()
        except HoldfastError as error:
            log.event("run-failed", error=type(error).__name__, message=str(error))
            raise
        told = {key: result[key] for key in ("status", "steps") if key in result}
        log.event("run-ended", **told)  # a script has no steps, nor has who trains nothing
    return result
