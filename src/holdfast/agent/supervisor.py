"""Supervisor: starts the workers of one run, watches them to the end, and leaves nothing behind.

    fork all ─▶ watch ─▶ all finished ─────────────────────────▶ result
                  │ a worker dies or raises ─▶ abort the rest ─▶ WorkerFailed, naming the culprit
                  │ stop requested ─▶ workers save and finish ─▶ result, stopped
                  └ no end in time ─▶ abort ─▶ kill

It holds no training state: that is in the arena and in the workers.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast import errors
from holdfast.agent.barrier import CheckpointBarrier
from holdfast.agent.forks import ForkServer
from holdfast.arena.host_memory import available, oom_kills
from holdfast.arena.memory import Arena
from holdfast.errors import HoldfastError, OutOfMemory, ProtocolError, WorkerFailed
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import worker_log
from holdfast.wire.channel import Channel, pair
from holdfast.wire.messages import (
    AnyMessage,
    CheckpointDone,
    Exited,
    Failed,
    Finished,
    PartFailed,
    PartWritten,
    Refused,
)

TICK_S: Final = 0.1
LAST_WORDS_TIMEOUT_S: Final = 2.0
"""How long the messages of a dead worker are waited for; a child of its own may hold the socket."""
ABORT_TIMEOUT_S: Final = 5.0
"""How long workers may take to leave once the abort word is set, before they are killed."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    rank: int
    pid: int
    pidfd: int
    channel: Channel
    status: int | None = None
    failure: Failed | None = None
    result: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Controls:
    """How others speak to a running supervisor.

    Attributes:
        stop: Ends the run after the step in hand, with a checkpoint.
        abort: Ends the run at once.
        watch: Called about ten times a second with the arena.
    """

    stop: bool = False
    abort: bool = False
    watch: Callable[[Arena], None] | None = None


class Supervisor:
    """Runs the workers of one host.

    Args:
        forks: A running fork server.
        arena: The host's shared memory.
        barrier: Commits checkpoints.
        events: The run's log of events.
        logs: The directory of the workers' own logs.
        controls: How to stop it.
        timeout_s: How long workers may take to end their step and save when asked to stop.
    """

    def __init__(
        self,
        forks: ForkServer,
        arena: Arena,
        barrier: CheckpointBarrier,
        events: EventLog,
        logs: Path,
        controls: Controls,
        timeout_s: float,
    ) -> None:
        self._forks, self._arena, self._barrier = forks, arena, barrier
        self._events, self._logs, self._controls = events, logs, controls
        self._timeout_s = timeout_s
        self._workers: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._culprit: _Worker | None = None
        self._stop_deadline: float | None = None
        self._abort_deadline: float | None = None
        self._late = False
        self._oom_kills = oom_kills()

    def run(self, launches: Sequence[str]) -> dict[str, Any]:
        """Run one worker for each of `launches`; returns what rank 0 reports at the end.

        Raises:
            WorkerFailed: A worker died or its code raised.
            HoldfastError: A worker ended with one of holdfast's own errors.
        """
        try:
            self._selector.register(self._forks.channel, selectors.EVENT_READ, None)
            for rank, launch in enumerate(launches):
                self._start(rank, launch)
            self._receive(None)  # a worker may have died while the next ones were forked
            while any(worker.status is None for worker in self._workers.values()):
                for key, _ in self._selector.select(TICK_S):
                    self._receive(key.data)
                self._show()
                self._check_controls()
            if self._culprit is not None:
                raise self._blame(self._culprit)
            result = self._workers[0].result
            if result is None:
                raise HoldfastError(self._why_aborted())
            return result
        finally:
            self._clean_up()

    def _show(self) -> None:
        if self._controls.watch is not None:
            try:
                self._controls.watch(self._arena)
            except OSError:  # the terminal has been closed: nobody is left to show anything to
                self._controls.watch = None

    def _start(self, rank: int, launch: str) -> None:
        near, far = pair()
        log = os.open(worker_log(self._logs, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fds = (self._arena.fd, far.fileno(), log)
            pid, pidfd = self._forks.fork(rank, launch, fds)
        finally:
            os.close(log)
            far.close()
        worker = _Worker(rank=rank, pid=pid, pidfd=pidfd, channel=near)
        self._workers[rank] = worker
        self._selector.register(near, selectors.EVENT_READ, worker)
        self._events.event("worker-started", rank=rank, pid=pid)

    def _receive(self, worker: _Worker | None) -> None:
        if worker is None:
            for message in self._forks.messages():
                self._on_fork_server(message)
            if self._forks.channel.at_end:
                if oom_kills() > self._oom_kills:
                    raise _killed_for_memory("the fork server")
                raise HoldfastError(self._forks.died)
            return
        for message in worker.channel.poll(0):
            self._on_worker(worker, message)
        if worker.channel.at_end:
            self._selector.unregister(worker.channel)

    def _on_worker(self, worker: _Worker, message: AnyMessage) -> None:
        match message:
            case PartWritten() | PartFailed():
                self._on_part(message)
            case Finished():
                worker.result = message.result
            case Failed():
                worker.failure = message
                self._accuse(worker)
            case Refused():
                self._events.event(
                    "checkpoint-refused",
                    rank=message.rank,
                    directory=message.directory,
                    reason=message.reason,
                )
            case _:
                raise ProtocolError(f"rank {worker.rank} sent {message.kind!r}")

    def _on_part(self, part: PartWritten | PartFailed) -> None:
        verdict = self._barrier.arrive(part)
        if verdict is None:
            return
        if verdict.error is None:
            self._events.event("checkpoint", step=verdict.step, directory=str(verdict.directory))
        else:
            self._events.event("checkpoint-failed", step=verdict.step, reason=verdict.error)
        for worker in self._workers.values():
            with contextlib.suppress(ConnectionError):  # it died; the fork server will say so
                worker.channel.send(CheckpointDone(step=verdict.step, error=verdict.error))

    def _on_fork_server(self, message: AnyMessage) -> None:
        if not isinstance(message, Exited):
            raise ProtocolError(f"the fork server sent {message.kind!r}")
        worker = self._workers.get(message.rank)
        if worker is None or worker.pid != message.pid:  # of an earlier run on this fork server
            return
        deadline = time.monotonic() + LAST_WORDS_TIMEOUT_S
        while not worker.channel.at_end and time.monotonic() < deadline:
            for late in worker.channel.poll(TICK_S):
                self._on_worker(worker, late)
        worker.status = message.status
        self._events.event("worker-exited", rank=worker.rank, status=worker.status)
        if worker.result is None:
            self._accuse(worker)

    def _accuse(self, worker: _Worker) -> None:
        """Whoever fails before the abort is to blame; whoever leaves after it is a victim."""
        if self._culprit is None and not self._arena.aborted:
            self._culprit = worker
            self._abort()

    def _abort(self) -> None:
        self._arena.abort()
        self._abort_deadline = time.monotonic() + ABORT_TIMEOUT_S

    def _check_controls(self) -> None:
        now = time.monotonic()
        if self._controls.stop and self._stop_deadline is None:
            self._arena.request_stop()
            self._stop_deadline = now + self._timeout_s
            self._events.event("stop-requested")
        self._late = self._stop_deadline is not None and now > self._stop_deadline
        if (self._controls.abort or self._late) and self._abort_deadline is None:
            self._abort()
        if self._abort_deadline is not None and now > self._abort_deadline:
            self._kill()

    def _why_aborted(self) -> str:
        cause = f"did not end their step within {self._timeout_s:.0f} s of being asked to stop; "
        if not self._late:
            return "the run was aborted; resume it from its last checkpoint"
        return (
            f"the workers {cause}resume the run from its last checkpoint, with a longer timeout_s "
            "if a step or an evaluation may take that long"
        )

    def _kill(self) -> None:
        for worker in self._workers.values():
            if worker.status is None:
                try:
                    signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def _clean_up(self) -> None:
        self._kill()
        for worker in self._workers.values():
            ended = select.poll()
            ended.register(worker.pidfd, select.POLLIN)
            ended.poll(1000 * ABORT_TIMEOUT_S)
            worker.channel.close()
            os.close(worker.pidfd)
        self._selector.close()

    def _blame(self, worker: _Worker) -> HoldfastError:
        failure = worker.failure
        if failure is not None:
            own = errors.BY_NAME.get(failure.error)
            if own is not None:
                return own(failure.message)
            return WorkerFailed(
                f"rank {worker.rank} raised {failure.error}: {failure.message}",
                rank=worker.rank,
                traceback=failure.traceback,
            )
        if worker.status == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return _killed_for_memory(f"rank {worker.rank}")
        status = worker.status or 0
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited {status}"
        return WorkerFailed(
            f"rank {worker.rank} {how}; resume the run from its last checkpoint",
            rank=worker.rank,
            traceback=None,
        )


def _killed_for_memory(who: str) -> OutOfMemory:
    return OutOfMemory(
        f"{who} was killed by the kernel, which ran out of {available().limit}: lower batch, start "
        "fewer workers or allow more, and resume the run from its last checkpoint"
    )
