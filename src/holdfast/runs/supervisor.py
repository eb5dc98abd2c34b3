"""RunSupervisor: supervises a run to its end; replaces control processes and hosts that are lost.

    this process ── run requests ─▶ coordinator ◀── statuses ────── agent ──▶ workers
                 ◀─ run states ────             ── desired states ─▶

It is a loop in the thread of the caller. Each turn waits until a process has ended, a state has
come, or a tick is over. Then it shows the progress, looks at the controls, and replaces what has
ended. Membership and recovery are the coordinator's to decide; a run goes through these events:

A coordinator ends. Another is started and continues from the journal; no step waits for it.

A host is lost: its agent or its fork server has ended. The coordinator is told, and a host with a
new name is started in its place. `ProcessExits` limits how often that may happen.

Stop. The coordinator has all workers end after their step, with a checkpoint. If no step was
computed yet, or the run waits for hosts, nothing can be lost, and it ends without that. It also
ends if the workers take longer than the job's `timeout_s`.

Abort. In a run on several hosts the coordinator first ends it on the others. Then everything here
is ended.

Leave. The agent of this host leaves first. Then another host takes over the coordinator, and this
process ends while the run continues there.

End. The coordinator says that the run is over. Agents get some time to hear of it, and to send a
last checkpoint. Then everything is ended, also after an error. If this process is killed, the
kernel kills what it has started (`linux.lifeline`).
"""

from __future__ import annotations

import select
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from holdfast import errors
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import HoldfastError, Interrupted, RankTraceback, WorkerFailed
from holdfast.record.follower import Follower
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import RunDirectory, worker_log
from holdfast.runs.controls import Controls
from holdfast.runs.coordinator_process import SHUTDOWN_TIMEOUT_S, CoordinatorProcess
from holdfast.runs.hosts.hosts import Hosts
from holdfast.wire.rpc import RunStateMessage

TICK_S: Final = 0.1
"""Interval at which progress is shown and controls are looked at, seconds."""

LEAVE_TIMEOUT_S: Final = 30.0
"""Time that another host may take to take over the coordinator of one that leaves."""
IDLE_STOP_S: Final = 5.0
"""Time that a training function may take to come to its first step, once the run is to stop."""
_BEFORE_STEPS: Final = {"starting", "evaluate"}


class RunSupervisor:
    """Supervises one run; when its `with` block ends, nothing of the run is left running.

    Args:
        directory: The run's directory.
        hosts: The run's hosts, as far as this process starts them.
        coordinator: The run's coordinator.
        follower: Tells the run's sinks what happens.
        log: The run's log of events.
        controls: Requests to end it.
    """

    def __init__(
        self,
        directory: RunDirectory,
        hosts: Hosts,
        coordinator: CoordinatorProcess,
        follower: Follower,
        log: EventLog,
        controls: Controls,
    ) -> None:
        self._directory = directory
        self._hosts = hosts
        self._coordinator = coordinator
        self._follower = follower
        self._log = log
        self._controls = controls
        self._stop_requested_at: float | None = None
        self._leaving_since: float | None = None
        self._owned = ExitStack()
        self._owned.callback(hosts.close)
        self._owned.callback(coordinator.disconnect)  # first, so that it ends with the hosts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def result(self) -> dict[str, Any]:
        """Bring the run to its end; returns what a worker reports then.

        Raises:
            WorkerFailed: A worker died or its code raised, and that is not tolerated.
            HoldfastError: Anything else that ended the run.
        """
        self._coordinator.connect()
        while not self._coordinator.is_over:
            self._await_news()
            self._follower.poll(self._coordinator.state)
            if not self._coordinator.is_over:
                try:
                    self._check_controls()
                except Interrupted:
                    self._coordinator.abort()
                    raise
                self._coordinator.restart_if_ended()
                self._hosts.replace_lost()
        # Kept: a coordinator that must be started again below begins without a state.
        end = self._coordinator.state
        self._let_hosts_leave()
        self._follower.poll(self._coordinator.state)
        assert end is not None
        if end.reason:
            raise self._error(end)
        assert end.result is not None, "all have finished and none has a result"
        return end.result

    def _let_hosts_leave(self) -> None:
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        with suppress(HoldfastError):  # the run has ended as it has
            while self._hosts.are_up() and time.monotonic() < deadline:
                if self._coordinator.is_receiving and not self._controls.abort:
                    deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
                self._await_news()
                self._coordinator.restart_if_ended()  # the agent may not have heard of that yet

    def _error(self, state: RunStateMessage) -> HoldfastError:
        """Report of how the run ended."""
        advice = _advice(self._directory.path)
        if state.root_cause is None:
            return HoldfastError(state.reason + advice)
        rank, failure = state.root_cause
        log = f"; see {worker_log(self._directory.logs, rank)}"
        error: HoldfastError = WorkerFailed(state.reason + log + advice, rank=rank)
        if failure.error:
            is_memory = failure.error == errors.OutOfMemory.__name__
            error = errors.BY_NAME[failure.error](state.reason if is_memory else failure.cause)
        if failure.traceback:
            error.__cause__ = RankTraceback(rank, failure.traceback)
        return error

    def _await_news(self) -> None:
        """Block until a process has ended or a message has come, at most `TICK_S`."""
        news = select.poll()  # select itself refuses the descriptors of a large program
        for source in (*self._coordinator.sources(), *self._hosts.sources()):
            news.register(source, select.POLLIN)
        news.poll(1000 * TICK_S)
        self._coordinator.listen()

    def _leave(self) -> None:
        """Have this host leave the run, and another one take over its coordinator."""
        if not self._coordinator.can_move:
            self._controls.leave = False
            self._log.event("leave-refused", reason="no other host can take over the coordinator")
            return
        if self._leaving_since is None:
            self._leaving_since = time.monotonic()
        if time.monotonic() > self._leaving_since + LEAVE_TIMEOUT_S:
            raise HoldfastError(
                f"no other host has taken over the run in {LEAVE_TIMEOUT_S:.0f} s; resume it from "
                "its last checkpoint"
            )
        self._hosts.leave()

    def _check_controls(self) -> None:
        if self._controls.abort:
            at = f" while {self._hosts.doing}" if self._hosts.doing else ""
            raise Interrupted(f"the run was aborted{at}; resume it from its last checkpoint")
        waits = self._directory.job.most_hosts > 1 and self._coordinator.lacks_workers
        if self._controls.stop and waits:
            advice = _advice(self._directory.path)
            raise Interrupted(
                f"stopped while the run waited for hosts: no step was under way{advice}"
            )
        if self._controls.leave:
            self._leave()
        now = time.monotonic()
        if self._controls.stop and self._stop_requested_at is None and self._hosts.have_begun():
            self._coordinator.request_stop()
            self._stop_requested_at = now
            self._log.event("stop-requested")
        waited_s = 0.0 if self._stop_requested_at is None else now - self._stop_requested_at
        if waited_s > IDLE_STOP_S and self._is_before_steps:
            raise Interrupted("stopped before the first step: no step was under way")
        if waited_s > self._directory.job.timeout_s:
            raise Interrupted(
                f"the workers did not end their step within {self._directory.job.timeout_s:.0f} s "
                "of being asked to stop; resume the run from its last checkpoint, with a longer "
                "timeout_s if a step or an evaluation may take that long"
            )

    @property
    def _is_before_steps(self) -> bool:
        """True if no step was committed since the run began or was resumed, and some worker's
        training function has not come to its loop, or evaluates: a stop loses nothing.
        """
        if not self._directory.job.records_progress:
            return False
        state = self._coordinator.state
        workers = list(state.progress.values()) if state is not None else []
        is_idle = any(each.phase in _BEFORE_STEPS for each in workers)
        return is_idle and not any(each.samples for each in workers)


def _advice(run_dir: Path) -> str:
    """From which checkpoint a run that has failed can be resumed, if any."""
    checkpoint = None
    with suppress(OSError):  # the error says more
        checkpoint = CheckpointStore.of_run(run_dir).newest()
    if checkpoint is None:
        return ""
    return f"; resume the run from its last checkpoint, of step {checkpoint.step}"
