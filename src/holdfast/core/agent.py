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
from typing import Any

from holdfast.core.actions import (
    Abort,
    AgentAction,
    Fork,
    Kill,
    Leave,
    Release,
    Report,
    RequestSave,
    RequestStop,
    Settle,
)
from holdfast.core.events import AgentEvent, Exited, Finished, Ordered, Parked, Tick, Wrote
from holdfast.core.protocol import Failure, Orders, Part, Stage, Status, Verdict


@dataclass(slots=True)
class _Worker:
    """One process.

    Attributes:
        process: Its number.
        parked: The generation in which it stands still or has last stood still.
        committed, rooted: What it said there; see `Parked`.
    """

    process: int
    parked: int = 0
    committed: int | None = None
    rooted: int = 0


class Supervisor:
    """The workers of one agent.

    Args:
        host: The agent's name.
        room: How many workers it can run.
        heartbeat_s: How often it reports, seconds.
        now: This process's monotonic clock, seconds, as in every `now` here.

    Attributes:
        generation, stage: As in `Status`.
    """

    def __init__(self, host: str, room: int, heartbeat_s: float, now: float) -> None:
        self.generation, self.stage = 0, Stage.IDLE
        self._host, self._room, self._heartbeat_s = host, room, heartbeat_s
        self._orders = Orders(generation=0, stage=Stage.IDLE)
        self._workers: dict[int, _Worker] = {}
        self._ending: set[int] = set()
        self._failed: dict[int, Failure] = {}
        self._finished: set[int] = set()
        self._result: Mapping[str, Any] | None = None
        self._parts: dict[int, Part] = {}
        self._verdict: Verdict | None = None
        self._asked, self._stop = 0, False
        self._number, self._processes = 0, 0
        self._report_at = now

    def handle(self, event: AgentEvent, now: float) -> list[AgentAction]:
        """Take note of `event`; returns what is to be done, in order."""
        if self.stage == Stage.END:
            return []
        match event:
            case Ordered(orders):
                return self._obey(orders, now)
            case Parked():
                return self._park(event, now)
            case Wrote() | Finished():
                return self._note(event, now)
            case Exited():
                return self._bury(event, now)
            case Tick():
                return [self._report(now)] if now >= self._report_at else []

    def next_deadline(self) -> float | None:
        """When a Tick is due, if nothing else happens."""
        return None if self.stage == Stage.END else self._report_at

    def check_invariants(self) -> None:
        """Raises: AssertionError: This machine is in a state that it must never be in."""
        assert self._workers.keys() <= set(self._orders.ranks)
        assert not self._workers.keys() & self._failed.keys()
        assert not self._ending & {worker.process for worker in self._workers.values()}
        if self.stage in (Stage.HALT, Stage.RUN) and not self._failed:
            assert tuple(self._workers) == self._orders.ranks
            assert all(worker.parked == self.generation for worker in self._workers.values())

    def _obey(self, orders: Orders, now: float) -> list[AgentAction]:
        if orders.stage == Stage.END:
            self.stage = Stage.END
            if not orders.reason and self._finished >= self._workers.keys():
                return [Leave("")]
            return [Abort(orders.generation + 1), *self._kill_all(), Leave(orders.reason)]
        actions: list[AgentAction] = []
        if orders.generation > self.generation:
            actions = self._enter(orders, now)
        if orders.generation == self.generation:
            if orders.stop and not self._stop:
                self._stop = True
                actions += [RequestStop(), self._report(now)]
            if orders.verdict is not None and orders.verdict.generation == self.generation:
                actions += self._settle(orders.verdict)
            if (orders.stage, self.stage) == (Stage.RUN, Stage.HALT) and not self._failed:
                assert orders.start is not None
                self.stage = Stage.RUN
                actions += [Release(self.generation, orders.start), self._report(now)]
            if orders.save > self._asked and self.stage == Stage.RUN:
                self._asked = orders.save
                actions += [RequestSave(self.generation, orders.save), self._report(now)]
        return actions

    def _enter(self, orders: Orders, now: float) -> list[AgentAction]:
        """End the generation before, and bring those together who belong to this one."""
        self._orders, self.generation = orders, orders.generation
        self.stage, self._asked = Stage.IDLE, 0
        self._failed.clear()
        self._finished.clear()
        self._parts.clear()
        kills = self._kill_all(keep=() if orders.anew else orders.ranks)
        forks = self._fork_missing()
        return [Abort(self.generation), *kills, *forks, *self._halt_if_all_parked(now)]

    def _park(self, parked: Parked, now: float) -> list[AgentAction]:
        """A worker may know of the next generation, by a death on this host, before we do."""
        worker = self._workers.get(parked.rank)
        if worker is None or parked.generation < max(self.generation, worker.parked):
            return []
        worker.parked, worker.committed = parked.generation, parked.committed
        worker.rooted = parked.rooted
        return self._halt_if_all_parked(now)

    def _halt_if_all_parked(self, now: float) -> list[AgentAction]:
        whole = self._workers and len(self._workers) == len(self._orders.ranks)
        if self.stage != Stage.IDLE or self.absent or self._failed or not whole:
            return []
        self.stage = Stage.HALT
        return [self._report(now)]

    @property
    def absent(self) -> list[int]:
        """Processes that do not stand still yet where they are to."""
        workers = self._workers.values()
        return [each.process for each in workers if each.parked != self.generation]

    def _note(self, event: Wrote | Finished, now: float) -> list[AgentAction]:
        if event.generation != self.generation or event.rank not in self._workers:
            return []
        if isinstance(event, Wrote):
            self._parts[event.rank] = event.part
            numbers = {part.number for part in self._parts.values()}
            whole = self._parts.keys() == self._workers.keys() and len(numbers) == 1
            return [self._report(now)] if whole else []
        self._finished.add(event.rank)
        self._result = event.result
        return [self._report(now)]

    def _settle(self, verdict: Verdict) -> list[AgentAction]:
        waiting = {r: part for r, part in self._parts.items() if part.number > verdict.number}
        if waiting == self._parts:
            return []
        self._parts, self._verdict = waiting, verdict
        return [Settle(verdict)]

    def _bury(self, exited: Exited, now: float) -> list[AgentAction]:
        worker = self._workers.get(exited.rank)
        if worker is None or worker.process != exited.process:  # we have ended it ourselves
            self._ending.discard(exited.process)
            return self._fork_missing()
        del self._workers[exited.rank]
        self._failed[exited.rank] = exited.failure
        return [Abort(self.generation + 1), self._report(now)]

    def _fork_missing(self) -> list[AgentAction]:
        """Fork whom the orders want and nobody is, once all who were ended are gone."""
        if self._ending or self._failed or self.stage != Stage.IDLE:
            return []
        missing = [rank for rank in self._orders.ranks if rank not in self._workers]
        forks: list[AgentAction] = [self._fork(rank) for rank in missing]
        self._workers = dict(sorted(self._workers.items()))
        return forks

    def _fork(self, rank: int) -> Fork:
        self._processes += 1
        self._workers[rank] = _Worker(self._processes)
        return Fork(rank, self.generation, self._processes)

    def _kill_all(self, keep: Sequence[int] = ()) -> list[AgentAction]:
        odd = [rank for rank in self._workers if rank not in keep]
        kills = [Kill(rank, self._workers.pop(rank).process) for rank in odd]
        self._ending.update(kill.process for kill in kills)
        return list(kills)

    @property
    def members(self) -> Mapping[int, str]:
        """The host of every rank of the generation."""
        return self._orders.members

    @property
    def failed(self) -> Mapping[int, Failure]:
        """Why workers of the generation died, by rank."""
        return self._failed

    def _report(self, now: float) -> Report:
        self._number += 1
        self._report_at = now + self._heartbeat_s
        still = self.stage == Stage.HALT
        return Report(
            Status(
                host=self._host,
                number=self._number,
                generation=self.generation,
                stage=self.stage,
                room=self._room,
                failed=dict(self._failed),
                committed={
                    rank: worker.committed
                    for rank, worker in self._workers.items()
                    if still and worker.committed is not None
                },
                rooted=max((w.rooted for w in self._workers.values()), default=0) if still else 0,
                finished=frozenset(self._finished),
                result=self._result if self._finished else None,
                parts=dict(self._parts),
                verdict=self._verdict,
                asked=self._asked,
                stop=self._stop,
            )
        )
