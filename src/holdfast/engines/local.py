"""The local engine: a run on this machine, of which nothing is left but its directory."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Any

from holdfast.agent.barrier import CheckpointBarrier
from holdfast.agent.forks import ForkServer
from holdfast.agent.spawn import WORKER, Spawned, spawn
from holdfast.agent.supervisor import Controls, Supervisor
from holdfast.arena.memory import Arena
from holdfast.checkpoint import manifest
from holdfast.errors import HoldfastError, JobError
from holdfast.job.spec import Job
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import RunDirectory
from holdfast.tasks import reference
from holdfast.wire.lifeline import STOP_SIGNALS
from holdfast.worker.launch import Launch


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
        forks: A fork server to use, or one that is on its way and for this run alone; by default
            one is started.

    Returns:
        What rank 0 reports: steps, loss, evaluation, throughput, hash of the weights.

    Raises:
        JobError: The job cannot be run.
        WorkerFailed: A worker died or raised.
        HoldfastError: Anything else that ended the run.
    """
    attempt = secrets.token_hex(4)
    try:
        manifest.sweep(directory.checkpoints)
    except OSError as error:
        raise JobError(f"{error.filename}: {error.strerror}; remove it by hand") from None
    try:
        return _run(job, directory, attempt, controls, forks)
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
    attempt: str,
    controls: Controls,
    forks: ForkServer | Spawned | None,
) -> dict[str, Any]:
    launches = _launches(job, directory, attempt)
    barrier = CheckpointBarrier(directory.checkpoints, attempt, job.workers, job.checkpoint.keep)
    with (
        EventLog(directory.path / "events.jsonl") as events,
        closing(Arena.create(job.workers)) as arena,
        _stop_on_signals(controls),
        _fork_server(job, directory, forks, controls) as server,
    ):
        events.event("run-started", attempt=attempt, workers=job.workers)
        supervisor = Supervisor(
            server, arena, barrier, events, directory.logs, controls, job.timeout_s
        )
        try:
            result = supervisor.run(launches)
        except HoldfastError as error:
            events.event("run-failed", error=type(error).__name__, message=str(error))
            raise
        events.event("run-ended", status=result["status"], steps=result.get("steps"))
    return result


def _launches(job: Job, directory: RunDirectory, attempt: str) -> list[str]:
    """The orders of each worker."""
    restore = manifest.committed(directory.checkpoints)
    return [
        Launch(
            job=job,
            rank=rank,
            generation=1,
            run_dir=str(directory.path.resolve()),
            attempt=attempt,
            restore=tuple(str(path.resolve()) for path in restore),
        ).model_dump_json()
        for rank in range(job.workers)
    ]


@contextmanager
def _fork_server(
    job: Job,
    directory: RunDirectory,
    forks: ForkServer | Spawned | None,
    controls: Controls,
) -> Iterator[ForkServer]:
    if isinstance(forks, ForkServer):
        yield forks
        return
    server = ForkServer(forks or spawn(WORKER))
    try:
        with server:
            server.prepare(reference.of_job(job), lambda: controls.abort)
            yield server
    finally:
        with suppress(OSError):  # the disk is full
            if output := server.output():
                (directory.logs / "fork-server.log").write_bytes(output)


@contextmanager
def _stop_on_signals(controls: Controls) -> Iterator[None]:
    """Have signals stop the run, and abort it when they come again."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        controls.abort = controls.stop
        controls.stop = True
        with suppress(OSError):  # whoever read it may have got the same signal
            os.write(
                2, b"stopping after this step; once more to abort\n"
            )  # print may be interrupted

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
