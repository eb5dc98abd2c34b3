"""The simulated workers: they train in lockstep, halt when asked to, and exit when killed.

The state of a worker is a chain of hashes, one link per step, so two workers that differ in any
step differ forever. A step is simulated as a whole: when it began, when its reduced gradient was
complete, and when the last worker had committed it. How far a single worker was in between is
computed only if something happens to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from holdfast.core.protocol import ResumePoint
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.cuts import Cuts, Pair
from holdfast_bench.simulation.timeline import Timeline

NEVER: Final = math.inf
COMPLETE_SPREAD: Final = 0.2
"""How long before the last host the first one has all of the gradient; fraction of a step."""
BARRIER_SPREAD: Final = 0.1
"""How long after the first worker the last one passes the last barrier; fraction of a step."""
BROKEN_SHARE: Final = 0.3
"""Share of cuts that break a connection."""


def link(chain: int, step: int) -> int:
    """The state after `step`, from the state before it."""
    return hash((chain, step))


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker process.

    Attributes:
        committed: Steps committed in its replica; None if it has no state. While it trains, those
            when it began to.
        chain: Its state, as of then.
        group: The group that it trains in, if it does.
        hangs: True if it hangs.
        cured_at: When it is fast again, once it was found to be slow; seconds.
        newest_generation: The newest generation that it knows.
    """

    rank: int
    host: str
    process: int
    alive: bool = True
    committed: int | None = None
    chain: int = 0
    group: Group | None = None
    hangs: bool = False
    cured_at: float = 0.0
    newest_generation: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The workers of a generation.

    Attributes:
        size: How many there must be before a step can begin.
        first, step: The first step that it computed, and the current one.
        chain: The state before the current step.
        reduced_at: When all hosts have the reduced gradient of the current step.
        committed_at: When all have committed it.
        complete_from, complete_until: When the first host was to have it, and the last one.
        broken_at: When it became certain that not all will have it.
        severed: Hosts whose workers do not reach each other, so that the step cannot end.
        has_broken: True if a connection between some has broken, so that healing is not enough.
        saves: Checkpoints that it has begun.
        is_complete: True if no worker has left.
    """

    generation: int
    size: int
    workers: dict[int, SimulatedWorker] = field(default_factory=dict)
    first: int = 0
    step: int = 0
    chain: int = 0
    reduced_at: float = NEVER
    committed_at: float = NEVER
    complete_from: float = NEVER
    complete_until: float = NEVER
    broken_at: float = NEVER
    severed: list[Pair] = field(default_factory=list)
    has_broken: bool = False
    saves: int = 0
    is_complete: bool = True

    @property
    def hosts(self) -> set[str]:
        """The hosts of its workers."""
        return {worker.host for worker in self.workers.values()}

    def has_completed(self, host: str, now: float) -> bool:
        """True if a host has the reduced gradient of the current step."""
        if self.complete_until == NEVER:
            return False
        fraction = crc32(f"{host} {self.step}".encode()) / 2**32
        spread = self.complete_until - self.complete_from
        return self.complete_from + fraction * spread <= min(now, self.broken_at)

    def stop(self, now: float) -> None:
        """From now on no further host completes the step."""
        self.broken_at = min(self.broken_at, now)
        self.reduced_at = self.committed_at = NEVER


class DataPlane:
    """All workers of a cluster.

    Args:
        timeline: Virtual time.
        cluster: The cluster's parameters.
        cuts: Between hosts.
        begin: Called with a group when it begins a step, or when no step is left.
        stall: Called with a group whose step cannot end because of a cut.
    """

    def __init__(
        self,
        timeline: Timeline,
        cluster: Cluster,
        cuts: Cuts,
        begin: Callable[[Group], None],
        stall: Callable[[Group], None],
    ) -> None:
        self._timeline = timeline
        self._chance = timeline.chance
        self._cuts = cuts
        self.num_steps = cluster.num_steps
        self._step_s = cluster.step_s
        self._begin = begin
        self._stall = stall
        self._training: Group | None = None
        self._groups: dict[int, Group] = {}
        self._roots: dict[str, tuple[int, int]] = {}
        self._stopping: set[str] = set()
        self._asked = (0, 0)
        self._newest = self._committed = self._restored_in = 0
        self._holders: set[str] = set()
        self.chains = [0]
        """The state of the reference run after each step, as far as this run has come."""

    def reduced_step(self, host: str) -> int:
        """The step of `core.protocol.Status.reduced_step`."""
        return self._roots.get(host, (0, 0))[0]

    def request_stop(self, host: str) -> None:
        """Ask the workers of `host` to end the run with a step that they have not reduced yet."""
        self._stopping.add(host)

    def request_save(self, generation: int, number: int) -> None:
        """Ask the workers of a generation for a checkpoint, if they have not begun it."""
        self._asked = max(self._asked, (generation, number))

    def save_requested(self, group: Group) -> bool:
        """True if a group was asked for a checkpoint that it has not begun."""
        generation, number = self._asked
        return generation == group.generation and number > group.saves

    def is_over(self, group: Group) -> bool:
        """True if a group has reached the end of the run, or the step at which to stop."""
        if self._stopping and any(w.host in self._stopping for w in group.workers.values()):
            return True
        return group.step == self.num_steps

    def leave(self, worker: SimulatedWorker, now: float) -> None:
        """Remove a worker from its group: it was killed, hangs, or was asked to halt."""
        group = worker.group
        worker.group = None
        if group is None:
            return
        if group.is_complete and group.step > group.first:
            for each in group.workers.values():
                self._credit(each, group)
        group.is_complete = False
        del group.workers[worker.rank]
        if now < group.reduced_at:
            # Its host may have told the others that it is complete: then they can commit the step.
            if not group.has_completed(worker.host, now) or self._chance.random() < 0.5:
                group.stop(now)
        elif now >= self._chance.uniform(group.reduced_at, group.committed_at):
            self._commit(worker, group)
        if group.has_completed(worker.host, now):
            self._roots[worker.host] = (group.step + 1, link(group.chain, group.step))

    def on_cut(self) -> None:
        """A cut was made: a step that not all hosts have completed may not end."""
        group = self._training
        if group is None or self._timeline.now >= group.reduced_at:
            return
        is_first = not group.severed
        group.severed = self._cuts.severed_in(group.hosts)
        if group.severed and is_first:
            group.stop(self._timeline.now)
            self._stall(group)

    def on_healed(self) -> None:
        """A cut was healed. TCP continues where it was, unless a connection has broken."""
        group = self._training
        if group is None or not group.severed or not group.is_complete or group.has_broken:
            return
        group.has_broken = self._chance.random() < BROKEN_SHARE
        if not group.has_broken:
            group.severed = self._cuts.severed_in(group.hosts)
            if not group.severed:
                self._time_step(group)

    def resume(self, worker: SimulatedWorker, generation: int, start: ResumePoint) -> None:
        """Bring a worker's own replica to the resume point."""
        if worker.committed == start.step:
            return
        count, chain = self._roots[worker.host]
        assert worker.committed == start.step - 1, "a donor that cannot come to the step"
        assert count == start.step, "a root of another step"
        worker.committed = count
        worker.chain = chain
        self._note(generation, count, chain, [worker.host])

    def check(self, generation: int, start: ResumePoint, hosts: Iterable[str]) -> None:
        """Check where a generation resumes.

        Args:
            generation: The generation.
            start: Its resume point.
            hosts: The hosts of its members.

        Raises:
            AssertionError: It does a step again that a worker has committed, which may be lost by
                now, though not all hosts with that step are.
        """
        are_lost = self._holders.isdisjoint(hosts)
        if (are_lost or not start.donors) and generation > self._restored_in:
            self._restored_in = generation
            self._committed = start.step
        assert start.step >= self._committed, "a step is done again"

    def copy(
        self, worker: SimulatedWorker, start: ResumePoint, donor: SimulatedWorker | None
    ) -> None:
        """Give a worker the state of another one, or if there is none that of a checkpoint."""
        worker.committed = start.step
        worker.chain = self.chains[start.step] if donor is None else donor.chain

    def join(self, worker: SimulatedWorker, generation: int, size: int) -> None:
        """Let a worker train with the others of its generation, once all are ready."""
        group = self._groups.setdefault(generation, Group(generation, size))
        group.workers[worker.rank] = worker
        worker.group = group
        self._roots.pop(worker.host, None)
        if group.is_complete and len(group.workers) == size:
            self._groups.clear()
            self._training = group
            assert generation > self._newest, "an older generation trains again"
            self._newest = generation
            found = {(worker.committed, worker.chain) for worker in group.workers.values()}
            assert len(found) == 1, f"the workers of generation {generation} differ: {found}"
            assert worker.committed is not None
            group.first = group.step = worker.committed
            group.chain = worker.chain
            assert worker.chain == self.chains[group.step], f"step {group.step}: another lineage"
            self._begin_step(group)

    def _end_step(self, group: Group, due: float) -> None:
        """The remaining workers commit the step, and begin the next one if none has left."""
        if due != group.committed_at:
            return  # a worker failed, so the step does not end
        if not group.is_complete:
            for worker in group.workers.values():
                self._commit(worker, group)
        group.chain = self._state_after(group)
        group.step += 1
        group.reduced_at = group.committed_at = group.complete_until = NEVER
        if group.is_complete:
            self._begin_step(group)

    def _begin_step(self, group: Group) -> None:
        group.severed = self._cuts.severed_in(group.hosts) if self._cuts else []
        self._begin(group)
        if group.severed:
            self._stall(group)
        elif not self.is_over(group):
            self._time_step(group)

    def _time_step(self, group: Group) -> None:
        now = self._timeline.now
        duration = self._step_s * self._chance.uniform(0.8, 1.5)
        group.reduced_at = group.complete_until = now + duration
        group.complete_from = group.reduced_at - COMPLETE_SPREAD * duration
        group.committed_at = group.reduced_at + BARRIER_SPREAD * duration
        group.broken_at = NEVER
        self._timeline.at(group.committed_at, self._end_step, group, group.committed_at)

    def _credit(self, worker: SimulatedWorker, group: Group) -> None:
        """Credit a worker with the steps that its group has committed since it began."""
        assert worker.committed == group.first, "a step was skipped, or committed twice"
        worker.committed = group.step
        worker.chain = group.chain
        self._roots[worker.host] = (group.step, group.chain)

    def _commit(self, worker: SimulatedWorker, group: Group) -> None:
        assert worker.committed == group.step, "a step was skipped, or committed twice"
        worker.committed = group.step + 1
        worker.chain = self._state_after(group)
        self._roots[worker.host] = (worker.committed, worker.chain)

    def _state_after(self, group: Group) -> int:
        """The state after the current step, which a worker commits."""
        chain = link(group.chain, group.step)
        self._note(group.generation, group.step + 1, chain, group.hosts)
        return chain

    def _note(self, generation: int, step: int, chain: int, hosts: Iterable[str]) -> None:
        """A worker has committed a step. Once a generation has loaded a checkpoint, those of older
        ones are fenced, and what they commit does not count.
        """
        if len(self.chains) == step:
            self.chains.append(chain)
        assert self.chains[step] == chain, "two lineages"
        if generation >= self._restored_in:
            if step > self._committed:
                self._holders.clear()
            self._committed = max(self._committed, step)
            if step == self._committed:
                self._holders.update(hosts)
