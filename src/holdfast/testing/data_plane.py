"""The simulated workers: they train in lockstep, halt when asked to, and exit when killed.

The state of a worker is a chain of hashes, one link per step, so two workers that differ in any
step differ forever. A step is simulated as a whole: when it began, when its reduced gradient was
complete, and when the last worker had committed it. How far a single worker was in between is
computed only if something happens to it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.protocol import ResumePoint

NEVER: Final = math.inf
BARRIER_SPREAD: Final = 0.1
"""How long after the first worker the last one passes the last barrier; fraction of a step."""


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
        hangs: Whether it hangs.
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
    newest_generation: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The workers of a generation.

    Attributes:
        size: How many there must be before a step can begin.
        first, step: The first step that it computed, and the current one.
        chain: The state before the current step.
        reduced_at: When the reduced gradient of the current step is complete.
        committed_at: When all have committed it.
        saves: Checkpoints that it has begun.
        is_complete: Whether no worker has left.
    """

    generation: int
    size: int
    workers: dict[int, SimulatedWorker] = field(default_factory=dict)
    first: int = 0
    step: int = 0
    chain: int = 0
    reduced_at: float = NEVER
    committed_at: float = NEVER
    saves: int = 0
    is_complete: bool = True


class DataPlane:
    """All workers of a cluster.

    Args:
        chance: The source of randomness.
        num_steps: Length of the run.
        step_s: Mean time of a step, seconds.
        begin: Called with a group when it begins a step, to schedule `end_step` at its
            `committed_at`, or when no step is left.
    """

    def __init__(
        self,
        chance: random.Random,
        num_steps: int,
        step_s: float,
        begin: Callable[[Group], None],
    ) -> None:
        self._chance, self.num_steps, self._step_s, self._begin = chance, num_steps, step_s, begin
        self._groups: dict[int, Group] = {}
        self._roots: dict[str, tuple[int, int]] = {}
        self._stopping: set[str] = set()
        self._asked = (0, 0)
        self._newest = 0
        self.chains = [0]
        """The state of the reference run after each step, as far as this run has come."""

    def reduced_step(self, host: str) -> int:
        """As `core.protocol.Status.reduced_step`."""
        return self._roots.get(host, (0, 0))[0]

    def request_stop(self, host: str) -> None:
        """Ask the workers of `host` to end the run with a step that they have not reduced yet."""
        self._stopping.add(host)

    def request_save(self, generation: int, number: int) -> None:
        """Ask the workers of a generation for a checkpoint, if they have not begun it."""
        self._asked = max(self._asked, (generation, number))

    def save_requested(self, group: Group) -> bool:
        """Whether a group was asked for a checkpoint that it has not begun."""
        generation, number = self._asked
        return generation == group.generation and number > group.saves

    def is_over(self, group: Group) -> bool:
        """Whether a group has reached the end of the run, or the step at which to stop."""
        if self._stopping and any(w.host in self._stopping for w in group.workers.values()):
            return True
        return group.step == self.num_steps

    def leave(self, worker: SimulatedWorker, now: float) -> None:
        """Remove a worker from its group: it was killed, hangs, or was asked to halt."""
        group, worker.group = worker.group, None
        if group is None:
            return
        if group.is_complete and group.step > group.first:
            for each in group.workers.values():
                self._credit(each, group)
        group.is_complete = False
        del group.workers[worker.rank]
        if now < group.reduced_at:
            # It may have done its part before that, and then the others can complete the step.
            if not worker.alive or worker.hangs or self._chance.random() < 0.5:
                group.reduced_at = group.committed_at = NEVER
        elif now >= self._chance.uniform(group.reduced_at, group.committed_at):
            self._commit(worker, group)

    def resume(self, worker: SimulatedWorker, start: ResumePoint) -> None:
        """Bring a worker's own replica to the resume point."""
        if worker.committed == start.step:
            return
        count, chain = self._roots[worker.host]
        assert worker.committed == start.step - 1, "a donor that cannot come to the step"
        assert count == start.step, "a root of another step"
        worker.committed, worker.chain = count, chain

    def copy(
        self, worker: SimulatedWorker, start: ResumePoint, donor: SimulatedWorker | None
    ) -> None:
        """Give a worker the state of another one, or if there is none that of a checkpoint."""
        worker.committed = start.step
        worker.chain = self.chains[start.step] if donor is None else donor.chain

    def join(self, worker: SimulatedWorker, generation: int, size: int, now: float) -> None:
        """Let a worker train with the others of its generation, once all are ready."""
        group = self._groups.setdefault(generation, Group(generation, size))
        group.workers[worker.rank], worker.group = worker, group
        self._roots.pop(worker.host, None)
        if group.is_complete and len(group.workers) == size:
            self._groups.clear()
            assert generation > self._newest, "an older generation trains again"
            self._newest = generation
            found = {(worker.committed, worker.chain) for worker in group.workers.values()}
            assert len(found) == 1, f"the workers of generation {generation} differ: {found}"
            assert worker.committed is not None
            group.first = group.step = worker.committed
            group.chain = worker.chain
            assert worker.chain == self.chains[group.step], f"step {group.step}: another lineage"
            self._begin_step(group, now)

    def end_step(self, group: Group, now: float) -> None:
        """The remaining workers commit the step, and begin the next one if none has left."""
        if now != group.committed_at:
            return  # a worker failed, so the step does not end
        if not group.is_complete:
            for worker in group.workers.values():
                self._commit(worker, group)
        group.chain = self._state_after(group)
        group.step += 1
        group.reduced_at = group.committed_at = NEVER
        if group.is_complete:
            self._begin_step(group, now)

    def _begin_step(self, group: Group, now: float) -> None:
        if not self.is_over(group):
            duration = self._step_s * self._chance.uniform(0.8, 1.5)
            group.reduced_at = now + duration
            group.committed_at = group.reduced_at + BARRIER_SPREAD * duration
        self._begin(group)

    def _credit(self, worker: SimulatedWorker, group: Group) -> None:
        """Credit a worker with the steps that its group has committed since it began."""
        assert worker.committed == group.first, "a step was skipped, or committed twice"
        worker.committed, worker.chain = group.step, group.chain
        self._roots[worker.host] = (group.step, group.chain)

    def _commit(self, worker: SimulatedWorker, group: Group) -> None:
        assert worker.committed == group.step, "a step was skipped, or committed twice"
        worker.committed, worker.chain = group.step + 1, self._state_after(group)
        self._roots[worker.host] = (worker.committed, worker.chain)

    def _state_after(self, group: Group) -> int:
        """The state after the current step, which a worker commits."""
        chain = link(group.chain, group.step)
        if len(self.chains) == group.step + 1:
            self.chains.append(chain)
        assert self.chains[group.step + 1] == chain, "two lineages"
        return chain
