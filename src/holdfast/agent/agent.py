"""The agent of a host: performs the actions of its state machine.

    coordinator ── desired state ─▶ core.agent ─▶ fork, kill, resume, abort ─▶ workers, arena
                ◀─ status ─────────     ▲
                                        └── halted, finished, exited ── workers, fork server

It has no training state: that is in the arena and in the workers. Decisions are made in `core`;
here is how they are performed, and where events come from.

Loop. One thread waits for whichever comes first: a desired state, a message of a worker, an exit,
the result of a checkpoint or a probe, or the machine's next deadline. What may take long is done
elsewhere: checkpoints in a thread (`agent.checkpoints`), which has another process write them
(`agent.writer_handle`), probes in threads. An event that comes while actions are performed is
handled after them.

Exits. The fork server is the parent of the workers and reports how they have ended. A worker's last
messages are read before its exit is handled, as they say why. If one failure takes others down,
their exits are seen within a moment, in any order: the agent waits for that moment, and handles the
root cause first. An exit that was not expected becomes a failure with a cause (`core.failures`).

Hangs. A worker that hangs says nothing, so all are observed from outside (`agent.worker_monitor`).
One that hangs is named, and asked for its stacks; at the next observation it is killed, and its
exit is a failure like any other.

Other ends. Without a coordinator the workers train on, and the link connects again: the newest
status is the first thing that a new coordinator hears. If the agent ends, the fork server kills its
workers. If the fork server ends, so do the workers, and this agent with an error: the command
starts both again (`runs.hosts.local`).
"""

from __future__ import annotations

import contextlib
import math
import select
import selectors
import time
from collections import deque
from dataclasses import replace
from typing import Final

from holdfast.agent.checkpoints import Checkpoints
from holdfast.agent.prober import Prober
from holdfast.agent.run_context import RunContext
from holdfast.agent.worker_handle import (
    HeldMemory,
    WorkerHandle,
    await_exits,
    fork_worker,
    resume_message,
)
from holdfast.agent.worker_log import WorkerLog
from holdfast.agent.worker_monitor import WorkerMonitor
from holdfast.agent.writer_handle import WriterHandle
from holdfast.arena.memory import Arena, Word
from holdfast.arena.worker_status import progress_of
from holdfast.core import actions, events
from holdfast.core.agent import AgentStateMachine
from holdfast.core.failures import Exit, judge
from holdfast.core.placement.shares import Slots
from holdfast.core.protocol import Failure
from holdfast.errors import ProtocolError
from holdfast.job.script_job import ScriptJob
from holdfast.launch.fork_client import ForkClient
from holdfast.linux.host_memory import OomKills, available
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.messages import (
    AnyMessage,
    CheckpointRejectedMessage,
    CheckpointResultMessage,
    EvictMessage,
    ExitedMessage,
    FailedMessage,
    FinishedMessage,
    FitMessage,
    HaltedMessage,
    MemoryMessage,
    OpenTunnelMessage,
    PartStagedMessage,
    PeerUnreachableMessage,
    ShutdownMessage,
    StagingMessage,
)
from holdfast.wire.rpc import DesiredStateMessage, StatusMessage

MONITOR_INTERVAL_S: Final = 0.1
"""Interval of each worker's observations."""
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""Time that workers that have finished may take to exit before they are killed."""
STOP_TIMEOUT_S: Final = 30.0
"""Time that a script may take to exit after SIGTERM."""
CASCADE_GRACE_S: Final = 0.2
"""Time before the root cause in which the exits of cascading failures may be seen."""


class Agent:
    """Starts, watches and ends the workers of one host.

    Args:
        name: Never used before in this run.
        run: The run.
        forks: A fork server.
        arena: The host's shared memory.
        log: The run's log of events.
        link: To the coordinator.
        checkpoints: Checkpoints of this host.
        writer: Writes them.

    Attributes:
        exit_reason: Cause of the agent's end, once it must end; empty if the run succeeded.
        ranks: The rank of each worker by its process, as it was last observed.
    """

    def __init__(
        self,
        name: str,
        run: RunContext,
        forks: ForkClient,
        arena: Arena,
        log: EventLog,
        link: CoordinatorLink[StatusMessage, DesiredStateMessage],
        checkpoints: Checkpoints,
        writer: WriterHandle,
    ) -> None:
        self._run = run
        self._forks = forks
        self._slots = Slots()
        self._arena = arena
        self._log = log
        self._link = link
        self._checkpoints = checkpoints
        self._writer = writer
        self._prober = Prober(run.interface)
        beat_s = run.job.heartbeat.interval_s
        self._machine = AgentStateMachine(
            name, run.capacity, beat_s, time.monotonic(), self._prober.address
        )
        self._workers = dict[int, WorkerHandle]()
        self.ranks = dict[int, int]()
        self._selector = selectors.DefaultSelector()
        self._selector.register(forks.channel, selectors.EVENT_READ, self._on_fork_server)
        self._selector.register(link, selectors.EVENT_READ, self._on_desired_state)
        self._selector.register(checkpoints, selectors.EVENT_READ, self._on_checkpoints)
        self._selector.register(self._prober, selectors.EVENT_READ, self._on_probes)
        if (listener := self._prober.listener) is not None:
            self._selector.register(listener, selectors.EVENT_READ, self._prober.accept)
        self._is_script = isinstance(run.job, ScriptJob)
        # The workers of one host may all wait for another, whose processor time is not known here.
        is_idle_known = run.job.records_progress or run.job.most_hosts == 1
        self._monitor = WorkerMonitor(
            arena,
            run.job.hang_timeout_s if is_idle_known else math.inf,
            together=not run.job.records_progress,
        )
        self._worker_log = WorkerLog(
            log, run.where, arena, self._monitor.can_answer, is_script=self._is_script
        )
        self._memory = HeldMemory()
        self._events: deque[events.AgentEvent] = deque()
        self._observe_at = time.monotonic()
        self._oom_kills = OomKills()
        self._forming_since: float | None = None
        self._stopping_since: float | None = None
        self._members = tuple[int, ...]()
        self._key = ""
        self.exit_reason: str | None = None

    def poll(self, timeout_s: float) -> None:
        """Wait for events, `timeout_s` at most, and handle them.

        Raises:
            HoldfastError: The fork server has exited.
        """
        if (due := self._machine.next_deadline()) is not None:
            timeout_s = max(0.0, min(timeout_s, due - time.monotonic()))
        for key, _ in self._selector.select(timeout_s):
            key.data()
        # The machine compares its deadlines with the time; a tick before one changes nothing.
        self._handle(events.Tick())
        self._end_hung()

    def leave(self) -> None:
        """Have this host leave the run; the coordinator then ends this agent."""
        self._handle(events.LeaveRequested())

    def close(self) -> None:
        """Kill all workers, and wait until they have exited."""
        if self.exit_reason == "":
            await_exits(self._workers.values(), SHUTDOWN_TIMEOUT_S)
        for worker in self._workers.values():
            worker.kill()
        await_exits(self._workers.values(), SHUTDOWN_TIMEOUT_S)
        for worker in self._workers.values():
            worker.close()
        self._memory.keep(())
        self._selector.close()
        self._prober.close()

    def _on_probes(self) -> None:
        for completed in self._prober.completed():
            self._handle(completed)

    def _on_desired_state(self) -> None:
        command = self._link.receive()
        if command is not None:
            self._key = command.key
            self._handle(events.DesiredStateReceived(command.desired))

    def _on_checkpoints(self) -> None:
        for result in self._checkpoints.results():
            self._handle(result)

    def _handle(self, event: events.AgentEvent) -> None:
        """Let the machine handle `event`, after those that are being handled."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            # Performing an action may bring further events: they are handled after it, not within.
            for action in self._machine.handle(self._events[0], time.monotonic()):
                if isinstance(action, actions.CheckpointAction):
                    self._checkpoints.perform(action)
                else:
                    self._perform(action)
            self._events.popleft()

    def _perform(self, action: actions.AgentAction) -> None:
        match action:
            case actions.SendStatus(status):
                progress = progress_of(self._arena, self._machine.ranks)
                status = replace(status, progress=progress)
                self._link.send(StatusMessage(status=status, node=self._run.node))
            case actions.Abort():
                self._abort(action)
            case actions.ForkWorker(rank, _, process):
                self._fork(rank, process)
            case actions.KillWorker(rank, process):
                self._kill(rank, process)
            case actions.ResumeWorkers():
                self._resume_workers(action)
            case actions.SendCheckpointResult(result):
                self._send_all(CheckpointResultMessage(number=result.number, error=result.error))
            case actions.RequestSave(generation, number):
                self._arena.request_save(generation, number)
            case actions.RequestStop():
                self._stop()
            case actions.ProbeHost(probe):
                self._prober.start(probe)
            case actions.ShutDownAgent(reason):
                self.exit_reason = reason
                if not reason:
                    self._send_all(ShutdownMessage())
                    self._writer.delete_old()  # an agent before this one may not have

    def _abort(self, abort: actions.Abort) -> None:
        """End the generations before this one on this host."""
        if abort.forgets:
            self._arena.forget_replicas()
            self._memory.keep(())
        # Of several aborts in a row only the first finds the workers where they trained.
        if self._forming_since is None:
            self._worker_log.generation_ends(self._workers.values(), self._members)
        self._forming_since = time.monotonic()
        # Workers that wait abandon their step now, the others when they wait next; then all halt.
        self._arena.announce(abort.generation)
        if self._run.tunnel is not None:
            self._run.tunnel.end(abort.generation)

    def _fork(self, rank: int, number: int) -> None:
        slot = self._slots.choose(rank, [each.slot for each in self._workers.values()])
        left = self._memory.of(rank)
        worker = fork_worker(self._forks, self._run, self._arena.fd, rank, number, slot, left)
        self._workers[number] = worker
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._hear(worker))
        self._log.event("worker-started", **worker.named, **self._run.where)
        self._on_fork_server()  # a worker may have exited meanwhile

    def _kill(self, rank: int, number: int) -> None:
        if number in self._workers:
            self._workers[number].cancelled = True
            self._workers[number].kill()
        else:  # it has exited by itself, as expected
            self._handle(events.WorkerExited(rank, number, Failure(cause="was gone already")))

    def _resume_workers(self, action: actions.ResumeWorkers) -> None:
        """Resume the workers, which have all halted in the same generation."""
        self._forming_since = None
        before = self._members
        self._members = tuple(sorted(self._machine.members))
        # All have halted: what the arena says of their last step may be changed.
        self._arena.clear_reduced_step()
        committed = (self._arena[rank, Word.COMMITTED] for rank in before)
        workers = self._workers.values()
        self._worker_log.generation_begins(
            action, self._members, max(committed, default=0), workers
        )
        found = self._checkpoints.found
        message = resume_message(action, self._machine, self._key, found)
        standbys = self._machine.standbys
        self._worker_log.standbys_change(workers, standbys, action.start.step)
        # What a worker has left is dropped once the run continues without it.
        self._memory.keep([worker.rank for worker in workers])
        for worker in workers:
            for rank, fd in self._memory.of_others(worker.rank).items():
                self._send(worker, MemoryMessage(rank=rank), fd)
            worker.has_resumed = True
            worker.halted_at = None
            worker.after_failure = False
            standby = standbys.get(worker.rank)
            self._send(worker, message.model_copy(update={"standby": standby}))

    def _stop(self) -> None:
        """Ask the workers to end: scripts by a signal, which they may handle for a while; others
        after their step, and without the rest of an evaluation.
        """
        self._stopping_since = time.monotonic()
        self._arena.request_stop()
        for worker in self._workers.values():
            if self._is_script:
                worker.terminate()
            else:
                worker.interrupt()

    def _send_all(self, message: AnyMessage) -> None:
        for worker in self._workers.values():
            self._send(worker, message)

    def _send(self, worker: WorkerHandle, message: AnyMessage, *fds: int) -> None:
        with contextlib.suppress(ConnectionError):  # it has exited, as the fork server will say
            worker.channel.send(message, fds)

    def _hear(self, worker: WorkerHandle) -> None:
        if worker.number not in self._workers:
            return  # its exit was handled after its message had come
        for message in worker.channel.poll(0):
            self._on_worker(worker, message)
        if worker.channel.at_end:
            self._selector.unregister(worker.channel)

    def _on_worker(self, worker: WorkerHandle, message: AnyMessage) -> None:
        match message:
            case HaltedMessage():
                self._on_halted(worker, message)
            case MemoryMessage(rank=rank):
                worker.has_memory = True
                self._memory.hold(rank, *worker.channel.take_fds(1))
            case PartStagedMessage():
                self._handle(events.PartStaged(worker.rank, message.generation, message.part))
            case StagingMessage():
                self._writer.begin(message)
            case FinishedMessage():
                finished = events.WorkerFinished(worker.rank, message.generation, message.result)
                self._handle(finished)
            case FailedMessage():
                worker.report = message.report
            case EvictMessage(generation=generation, eviction=eviction):
                self._handle(events.EvictionRequested(generation, eviction))
            case FitMessage(rank=rank):
                self._handle(events.WorkerFit(rank))
            case PeerUnreachableMessage(generation=generation, peer=peer):
                self._handle(events.PeerReported(generation, peer, message.is_broken))
            case CheckpointRejectedMessage():
                rejected = message.model_dump(exclude={"kind"})
                self._log.event("checkpoint-rejected", **rejected, **self._run.where)
            case OpenTunnelMessage() if self._run.tunnel is not None:
                worker.channel.send(self._run.tunnel.open(message))
            case _:
                raise ProtocolError(f"rank {worker.rank} sent {message.kind!r}")

    def _on_halted(self, worker: WorkerHandle, message: HaltedMessage) -> None:
        if not worker.has_memory:  # it cannot take over what the one before has left
            self._memory.drop(worker.rank)
        worker.halted_at = time.time() if worker.has_resumed else None
        left = self._arena.intact_step(worker.rank) if message.left is None else message.left
        halted = (message.generation, message.committed, self._arena.reduced_step)
        what = (message.address, message.numerics, left)
        self._handle(events.WorkerHalted(worker.rank, *halted, *what))

    def _on_fork_server(self) -> None:
        """Handle exits: those that another failure may have caused last, after a short wait."""
        ended = self._ended()
        deadline = time.monotonic() + CASCADE_GRACE_S
        # A process that took others down with it may be seen to exit after them.
        while 0 < len(ended) < len(self._workers) and all(map(self._may_be_cascading, ended)):
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            select.select([self._forks.channel], [], [], left_s)
            ended += self._ended()
        for worker, status in sorted(ended, key=self._may_be_cascading):
            self._on_worker_exit(worker, status)

    def _ended(self) -> list[tuple[WorkerHandle, int]]:
        """Workers that have exited, each with its status; their last messages are handled."""
        ended = []
        for message in self._forks.messages():
            if not isinstance(message, ExitedMessage):
                raise ProtocolError(f"the fork server sent {message.kind!r}")
            ended += [(w, message.status) for w in self._workers.values() if w.pid == message.pid]
            self._writer.on_exited(message.pid, message.status)
        for worker, _ in ended:  # none, if they were of an earlier run on this fork server
            for late in worker.channel.drain():
                self._on_worker(worker, late)
        return ended

    def _may_be_cascading(self, ended: tuple[WorkerHandle, int]) -> bool:
        """True if the failure of another worker, not handled yet, may have caused an exit.

        It can where workers use process groups of PyTorch. A worker that reports an exception has
        waited until the other's failure was known.
        """
        end = self._exit_of(*ended)
        if not self._run.job.has_process_groups or end.halting or end.stopping:
            return False
        return end.report is None and end.may_be_cascading

    def _exit_of(self, worker: WorkerHandle, status: int) -> Exit:
        return Exit(
            rank=worker.rank,
            status=status,
            report=worker.report,
            hung=worker.hung,
            exhausted=available().limit if self._oom_kills.look() else "",
            cap=self._cap_of(worker.rank),
            advice=self._run.memory_advice,
            cancelled=worker.cancelled,
            halting=self._forming_since is not None,
            after_failure=worker.after_failure,
            is_script=self._is_script,
            stopping=self._stopping_since is not None,
            run_over=self.exit_reason is not None,
        )

    def _cap_of(self, rank: int) -> int | None:
        """The most shards of a step that a worker can compute if it has run out of memory now: as
        many as it had computed, but fewer than the last time.
        """
        computed = self._arena[rank, Word.SHARDS]
        before = self._machine.caps.get(rank, computed + 1)
        return min(computed, before - 1) if self._run.job.movable_shards else None

    def _on_worker_exit(self, worker: WorkerHandle, status: int) -> None:
        del self._workers[worker.number]
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.channel)
        worker.close()
        end = self._exit_of(worker, status)
        failure = self._run.with_host(judge(end))
        self._worker_log.exited(worker, end, failure)
        if end.is_finished:
            result = {"status": "stopped" if end.stopping else "finished"}
            self._handle(events.WorkerFinished(worker.rank, self._machine.generation, result))
            return
        # Whatever the others report from here on, this failure may be its cause.
        if not end.is_expected:
            for other in self._workers.values():
                other.after_failure = True
        self._handle(events.WorkerExited(worker.rank, worker.number, failure))

    def _end_hung(self) -> None:
        """Kill workers that hang; their exits are failures like any other.

        A worker that can still write its stacks is asked to, and has until the next observation.
        """
        now = time.monotonic()
        if now < self._observe_at:
            return
        self._observe_at = now + MONITOR_INTERVAL_S
        self._oom_kills.look()
        self._writer.restart_if_lost(now)
        limit_s = self._run.job.timeout_s
        since = self._forming_since
        late = self._machine.absent if since is not None and now - since > limit_s else []
        self.ranks = {each.pid: each.rank for each in self._workers.values()}
        hung = self._monitor.observe(self.ranks, now)
        overdue = self._is_script and now - (self._stopping_since or now) > STOP_TIMEOUT_S
        for worker in self._workers.values():
            worker.check_end(now)
            why = hung.get(worker.pid, "")
            if worker.number in late:
                why = f"did not halt for {limit_s:.0f} s"
            # Named at one observation, killed at the next: its stacks are written by then.
            if worker.hung or overdue:
                worker.kill()
            elif why:
                worker.hung = why
                self._log.event("worker-hung", **worker.named, reason=why)
                if self._monitor.can_answer(worker.pid):
                    worker.request_stacks()
                else:
                    worker.kill()
        if any(each.hung for each in self._workers.values()):
            self._worker_log.hang_found(self._workers.values(), self._members)
