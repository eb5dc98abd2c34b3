"""The local engine: a run on this machine, of which nothing is left but its directory."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from holdfast import errors
from holdfast.agent.agent import Agent, Run
from holdfast.agent.forks import ForkServer
from holdfast.agent.spawn import WORKER, Spawned, spawn
from holdfast.arena.memory import Arena
from holdfast.checkpoint import manifest
from holdfast.coordinator.driver import Driver
from holdfast.coordinator.journal import Journal
from holdfast.core.events import Reported, StopAsked
from holdfast.core.protocol import Orders, Status
from holdfast.core.run import Policy
from holdfast.engines.controls import Controls
from holdfast.errors import HoldfastError, JobError, WorkerFailed
from holdfast.job.spec import Job
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import RunDirectory
from holdfast.tasks import reference
from holdfast.wire.lifeline import STOP_SIGNALS

TICK_S: Final = 0.1
"""How often progress is shown and controls are looked at."""
SILENCE_S: Final = 30.0
"""How long an agent may say nothing: here only one that hangs does."""
REST_S: Final = 5.0
"""How long a world that has shrunk goes on before lost workers are replaced."""


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
    with (
        EventLog(directory.path / "events.jsonl") as log,
        Journal(_fresh(directory.path / "coordinator.db")) as journal,
        closing(Arena.create(job.workers)) as arena,
        _stop_on_signals(controls),
        _fork_server(job, directory, forks, controls) as server,
    ):
        log.event("run-started", attempt=attempt, workers=job.workers)
        try:
            run = Run(job=job, directory=directory.path, attempt=attempt)
            result = Supervision(run, journal, server, arena, log, controls).result()
        except HoldfastError as error:
            log.event("run-failed", error=type(error).__name__, message=str(error))
            raise
        log.event("run-ended", status=result["status"], steps=result.get("steps"))
    return result


def _fresh(path: Path) -> Path:
    """Where a new attempt writes its facts; those of an earlier one are of no use to it."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    return path


class Supervision:
    """Coordinator and agent of a run on one host, in this process.

    Args:
        run: What is to be done.
        journal: The coordinator's.
        forks, arena, log: The agent's.
        controls: How to stop it.
    """

    def __init__(
        self,
        run: Run,
        journal: Journal,
        forks: ForkServer,
        arena: Arena,
        log: EventLog,
        controls: Controls,
    ) -> None:
        self._job, self._arena, self._controls, self._log = run.job, arena, controls, log
        self._reports: deque[Status] = deque()
        self._driver = Driver(policy_of(run.job), journal, self._obey)
        self._agent = Agent("local", run, forks, arena, log, self._reports.append)
        self._stop_deadline: float | None = None

    def result(self) -> dict[str, Any]:
        """Bring the run to its end; returns what a worker reports then.

        Raises:
            WorkerFailed: A worker died or its code raised, and that is not forgiven.
            HoldfastError: Anything else that ended the run.
        """
        with closing(self._agent):
            while self._agent.left is None:
                self._agent.poll(TICK_S)
                while self._reports:
                    self._driver.tell(Reported(self._reports.popleft()))
                self._driver.tick()
                self._show()
                self._check_controls()
        if self._agent.left:
            raise self._error()
        assert self._agent.result is not None, "all have finished and nobody has a result"
        return self._agent.result

    def _obey(self, _: str, orders: Orders) -> None:
        self._agent.obey(orders)

    def _show(self) -> None:
        if self._controls.watch is not None:
            try:
                self._controls.watch(self._arena)
            except OSError:  # the terminal has been closed: nobody is left to show anything to
                self._controls.watch = None

    def _check_controls(self) -> None:
        if self._controls.abort:
            raise HoldfastError("the run was aborted; resume it from its last checkpoint")
        now = time.monotonic()
        if self._controls.stop and self._stop_deadline is None:
            self._driver.tell(StopAsked())
            self._stop_deadline = now + self._job.timeout_s
            self._log.event("stop-requested")
        if self._stop_deadline is not None and now > self._stop_deadline:
            raise HoldfastError(
                f"the workers did not end their step within {self._job.timeout_s:.0f} s of being "
                "asked to stop; resume the run from its last checkpoint, with a longer timeout_s "
                "if a step or an evaluation may take that long"
            )

    def _error(self) -> HoldfastError:
        """What ended the run."""
        reason, culprit = self._driver.run.reason, self._driver.run.culprit
        if culprit is None:
            return HoldfastError(f"{reason}; resume the run from its last checkpoint")
        rank, failure = culprit
        if failure.error:
            return errors.BY_NAME[failure.error](failure.cause)
        advice = "" if failure.traceback else "; resume the run from its last checkpoint"
        return WorkerFailed(reason + advice, rank=rank, traceback=failure.traceback or None)


def policy_of(job: Job) -> Policy:
    """What the job wants to happen when something is lost."""
    stops = job.on_failure == "stop" or job.sync == "ddp"
    shrinks = job.on_failure == "shrink"
    return Policy(
        world_size=job.workers,
        min_workers=1 if shrinks else job.workers,
        rest_s=REST_S if shrinks else 0.0,
        silence_s=SILENCE_S,
        failures=0 if stops else job.restarts.limit,
        window_s=job.restarts.window_s,
    )


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
