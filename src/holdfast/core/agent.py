"""Supervisor: an agent's machine. It makes its workers what the newest orders say.

Which processes there should be follows from the orders alone, so a worker that died, one that was
never started and one that belongs elsewhere need no rules of their own. Nobody takes a seat before
all who were ended have left theirs: until then they may write to the memory that goes with it, or
hold a port. A death is reported at
once, and its generation ended on this host without asking: nobody can finish a step there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.actions import (
    Abort,
    AgentAction,
    ForkWorker,
    KillWorker,
    RequestSave,
    RequestStop,
    ResumeWorkers,
    SendCheckpointResult,
    SendStatus,
    ShutDownAgent,
)
from holdfast.core.events import (
    AgentEvent,
    DesiredStateReceived,
    PartWritten,
    Tick,
    WorkerExited,
    WorkerFinished,
    WorkerHalted,
)
from holdfast.core.protocol import CheckpointResult, DesiredState, Failure, Part, Stage, Status

WATCHED_INTERVAL_S: Final = 0.2
"""How often an agent sends its status while a command shows the run's progress, seconds."""


@dataclass(slots=True)
class _Worker:
    """One process.

    Attributes:
        process: Its number.
        parked: The generation in which it stands still or has last stood still.
        committed, rooted: What it said there; see `Parked`.
    """

    process: int
    halted_generation: int = 0
    committed: int | None = None
    reduced_step: int = 0


class AgentStateMachine:
    """The workers of one agent.

    Args:
        host: The agent's name.
        capacity: How many workers it can run.
        heartbeat_s: How often it reports, seconds.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        generation, stage: As in `Status`.
    """

    def __init__(self, host: str, capacity: int, heartbeat_s: float, now: float) -> None:
        self.generation, self.stage = 0, Stage.IDLE
        self._host, self._capacity, self._heartbeat_s = host, capacity, heartbeat_s
        self._desired = DesiredState(generation=0, stage=Stage.IDLE)
        self._workers: dict[int, _Worker] = {}
        self._ending: set[int] = set()
        self._failed: dict[int, Failure] = {}
        self._finished: set[int] = set()
        self._result: Mapping[str, Any] | None = None
        self._parts: dict[int, Part] = {}
        self._checkpoint_result: CheckpointResult | None = None
        self._requested_checkpoint, self._stop, self._watched = 0, False, False
        self._number, self._processes = 0, 0
        self._report_at = now

    def handle(self, event: AgentEvent, now: float) -> list[AgentAction]:
        """Take note of `event`; returns what is to be done, in order."""
        if self.stage == Stage.END:
            return []
        match event:
            case DesiredStateReceived(orders):
                return self._reconcile(orders, now)
            case WorkerHalted():
                return self._on_worker_halted(event, now)
            case PartWritten() | WorkerFinished():
                return self._on_worker_progress(event, now)
            case WorkerExited():
                return self._on_worker_exit(event, now)
            case Tick():
                return [self._send_status(now)] if now >= self._report_at else []

    def next_deadline(self) -> float | None:
        """When a Tick is due, if nothing else happens."""
        return None if self.stage == Stage.END else self._report_at

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        assert self._workers.keys() <= set(self._desired.ranks)
        assert not self._workers.keys() & self._failed.keys()
        assert not self._ending & {worker.process for worker in self._workers.values()}
        if self.stage in (Stage.HALT, Stage.RUN) and not self._failed:
            assert tuple(self._workers) == self._desired.ranks
            assert all(
                worker.halted_generation == self.generation for worker in self._workers.values()
            )

    def _reconcile(self, orders: DesiredState, now: float) -> list[AgentAction]:
        if orders.stage == Stage.END:
            self.stage = Stage.END
            if not orders.reason and self._finished >= self._workers.keys():
                return [ShutDownAgent("")]
            return [Abort(orders.generation + 1), *self._kill_all(), ShutDownAgent(orders.reason)]
        actions: list[AgentAction] = []
        self._watched = orders.watched
        if orders.generation > self.generation:
            actions = self._enter(orders, now)
        if orders.generation == self.generation:
            if orders.stop and not self._stop:
                self._stop = True
                actions += [RequestStop(), self._send_status(now)]
            if (
                orders.checkpoint_result is not None
                and orders.checkpoint_result.generation == self.generation
            ):
                actions += self._on_checkpoint_result(orders.checkpoint_result)
            if (orders.stage, self.stage) == (Stage.RUN, Stage.HALT) and not self._failed:
                assert orders.resume_point is not None
                self.stage = Stage.RUN
                actions += [
                    ResumeWorkers(self.generation, orders.resume_point),
                    self._send_status(now),
                ]
            if orders.requested_checkpoint > self._requested_checkpoint and self.stage == Stage.RUN:
                self._requested_checkpoint = orders.requested_checkpoint
                actions += [
                    RequestSave(self.generation, orders.requested_checkpoint),
                    self._send_status(now),
                ]
        return actions

    def _enter(self, orders: DesiredState, now: float) -> list[AgentAction]:
        """End the generation before, and bring those together who belong to this one."""
        self._desired, self.generation = orders, orders.generation
        self.stage, self._requested_checkpoint = Stage.IDLE, 0
        self._failed.clear()
        self._finished.clear()
        self._parts.clear()
        kills = self._kill_all(keep=() if orders.restart_all else orders.ranks)
        forks = self._fork_missing()
        return [Abort(self.generation), *kills, *forks, *self._halt_if_all_halted(now)]

    def _on_worker_halted(self, parked: WorkerHalted, now: float) -> list[AgentAction]:
        """A worker may know of the next generation, by a death on this host, before we do."""
        worker = self._workers.get(parked.rank)
        if worker is None or parked.generation < max(self.generation, worker.halted_generation):
            return []
        worker.halted_generation, worker.committed = parked.generation, parked.committed
        worker.reduced_step = parked.reduced_step
        return self._halt_if_all_halted(now)

    def _halt_if_all_halted(self, now: float) -> list[AgentAction]:
        whole = self._workers and len(self._workers) == len(self._desired.ranks)
        if self.stage != Stage.IDLE or self.absent or self._failed or not whole:
            return []
        self.stage = Stage.HALT
        return [self._send_status(now)]

    @property
    def absent(self) -> list[int]:
        """Processes that do not stand still yet where they are to."""
        workers = self._workers.values()
        return [each.process for each in workers if each.halted_generation != self.generation]

    def _on_worker_progress(
        self, event: PartWritten | WorkerFinished, now: float
    ) -> list[AgentAction]:
        if event.generation != self.generation or event.rank not in self._workers:
            return []
        if isinstance(event, PartWritten):
            self._parts[event.rank] = event.part
            numbers = {part.number for part in self._parts.values()}
            whole = self._parts.keys() == self._workers.keys() and len(numbers) == 1
            return [self._send_status(now)] if whole else []
        self._finished.add(event.rank)
        self._result = event.result
        return [self._send_status(now)]

    def _on_checkpoint_result(self, verdict: CheckpointResult) -> list[AgentAction]:
        waiting = {r: part for r, part in self._parts.items() if part.number > verdict.number}
        if waiting == self._parts:
            return []
        self._parts, self._checkpoint_result = waiting, verdict
        return [SendCheckpointResult(verdict)]

    def _on_worker_exit(self, exited: WorkerExited, now: float) -> list[AgentAction]:
        worker = self._workers.get(exited.rank)
        if worker is None or worker.process != exited.process:  # we have ended it ourselves
            self._ending.discard(exited.process)
            return self._fork_missing()
        del self._workers[exited.rank]
        self._failed[exited.rank] = exited.failure
        return [Abort(self.generation + 1), self._send_status(now)]

    def _fork_missing(self) -> list[AgentAction]:
        """Fork whom the orders want and nobody is, once all who were ended are gone."""
        if self._ending or self._failed or self.stage != Stage.IDLE:
            return []
        missing = [rank for rank in self._desired.ranks if rank not in self._workers]
        forks: list[AgentAction] = [self._fork(rank) for rank in missing]
        self._workers = dict(sorted(self._workers.items()))
        return forks

    def _fork(self, rank: int) -> ForkWorker:
        self._processes += 1
        self._workers[rank] = _Worker(self._processes)
        return ForkWorker(rank, self.generation, self._processes)

    def _kill_all(self, keep: Sequence[int] = ()) -> list[AgentAction]:
        odd = [rank for rank in self._workers if rank not in keep]
        kills = [KillWorker(rank, self._workers.pop(rank).process) for rank in odd]
        self._ending.update(kill.process for kill in kills)
        return list(kills)

    @property
    def members(self) -> Mapping[int, str]:
        """The host of every rank of the generation."""
        return self._desired.members

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose workers run on this host."""
        return tuple(self._workers)

    @property
    def failed(self) -> Mapping[int, Failure]:
        """Why workers of the generation died, by rank."""
        return self._failed

    def _send_status(self, now: float) -> SendStatus:
        self._number += 1
        interval_s = WATCHED_INTERVAL_S if self._watched else self._heartbeat_s
        self._report_at = now + min(interval_s, self._heartbeat_s)
        still = self.stage == Stage.HALT
        return SendStatus(
            Status(
                host=self._host,
                number=self._number,
                generation=self.generation,
                stage=self.stage,
                capacity=self._capacity,
                failed=dict(self._failed),
                committed={
                    rank: worker.committed
                    for rank, worker in self._workers.items()
                    if still and worker.committed is not None
                },
                reduced_step=max((w.reduced_step for w in self._workers.values()), default=0)
                if still
                else 0,
                finished=frozenset(self._finished),
                result=self._result if self._finished else None,
                parts=dict(self._parts),
                checkpoint_result=self._checkpoint_result,
                requested_checkpoint=self._requested_checkpoint,
                stop=self._stop,
            )
        )
