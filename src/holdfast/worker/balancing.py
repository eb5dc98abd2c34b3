"""Balancing: measures the steps of this worker, and gives more shards to faster ones.

    shards of step s ─▶ measured ─▶ reduction: all get the times of all ─▶ commit
                                                                             │
    shards of step s + 1  ◀── plan, the same on every worker ◀── Balance ◀───┘

The times travel with the gradient, so a plan costs no message and is never late. What a worker has
measured of a shard is kept in `Progress.costs`, from which the next generation begins.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from holdfast.arena.memory import Phase, Word
from holdfast.core.balance.balance import Balance, Policy, StepTimes
from holdfast.core.step.plan import Plan
from holdfast.errors import JobError
from holdfast.job.train_job import BALANCES, TrainJob
from holdfast.tasks import reference
from holdfast.tasks.code import located
from holdfast.worker.context import WorkerContext
from holdfast.worker.progress import Progress
from holdfast.worker.shard import plan_of


class Balancing:
    """The times of one worker, and the plan that follows from those of all.

    Args:
        context: Of this worker.
        progress: Of the run; the costs in it are written here.
        run_dir: Of the run, which has the code of a run of several hosts.

    Attributes:
        plan: Which member computes which shards.
    """

    def __init__(self, context: WorkerContext, progress: Progress, run_dir: Path) -> None:
        self._job, self._group, self._status = context.job, context.group, context.status
        self._progress = progress
        self.plan = Plan(counts=())
        self._members: tuple[int, ...] = ()
        self._balance: Balance | None = None
        self._shards_ns = self._rest_ns = self._update_ns = 0
        self._is_typical = False
        self._policy = None if self._job.balance in BALANCES else policy_of(self._job, run_dir)

    def begin_generation(self) -> None:
        """Plan for the members of a new generation."""
        self._members = members = self._group.members
        self.plan = plan_of(self._job, len(members))
        self.ignore_step()  # what remains of it may not be divided by the plan
        if self._job.balance == "even" or len(members) == 1:
            self._balance = None
            return
        balance = Balance(self._job.shards, self.plan.counts, self._hosts(), self._policy)
        known = {rank: (per_shard, fixed) for rank, per_shard, fixed in self._progress.costs}
        balance.begin([known.get(rank) for rank in members])
        self._balance, self.plan = balance, Plan(counts=balance.counts)

    def _hosts(self) -> list[range]:
        """The members of each host, by their place."""
        network, members = self._group.network, self._group.members
        if network is None:
            return [range(len(members))]
        host_of = {rank: host for host, ranks in enumerate(network.hosts.ranks) for rank in ranks}
        runs = itertools.groupby(range(len(members)), lambda place: host_of[members[place]])
        return [range(places[0], places[-1] + 1) for _, run in runs for places in [list(run)]]

    @contextmanager
    def shard(self) -> Iterator[None]:
        """Measure the shard that is read and computed within the context."""
        began = time.monotonic_ns()
        yield
        self._shards_ns += time.monotonic_ns() - began

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Measure what is done once in every step."""
        began = time.monotonic_ns()
        yield
        self._rest_ns += time.monotonic_ns() - began

    def take_times(self) -> StepTimes:
        """What was measured since the last call."""
        update_ns = self._status[Word.PHASE_TIMES + Phase.OPTIMIZER]
        rest_ns = self._rest_ns + update_ns - self._update_ns
        plan = zlib.crc32(repr(self.plan.counts).encode())
        times = StepTimes(self._shards_ns, rest_ns, plan)
        self._shards_ns, self._rest_ns, self._update_ns = 0, 0, update_ns
        return times

    def ignore_step(self) -> None:
        """Note that the times of the current step are not typical, on any worker."""
        self._is_typical = False

    def observe(self, times: Sequence[StepTimes], *, is_whole: bool) -> None:
        """Take the times of a committed step. The group may have new members already, if this
        worker completes the step while it joins a generation.

        Args:
            times: Of each member.
            is_whole: Whether the step had as many samples as most have.
        """
        is_typical, self._is_typical = self._is_typical and is_whole, True
        if self._balance is None or not is_typical:
            return
        self._balance.observe(times)
        self._progress.costs = [
            (rank, cost.per_shard_s, cost.fixed_s)
            for rank, cost in zip(self._members, self._balance.costs(), strict=True)
        ]

    def replan(self) -> bool:
        """Take the plan of the next step; returns whether it is another one."""
        if self._balance is None or self._balance.counts == self.plan.counts:
            return False
        self.plan = Plan(counts=self._balance.counts)
        if self._policy is None:
            self.ignore_step()  # samples of its new shards were not read ahead
        return True

    def explain_difference(self) -> NoReturn:
        """Raises: JobError: Workers have followed different plans."""
        raise JobError(
            f"balance={self._job.balance} chose different shards on different workers; it must "
            "depend on its arguments only, not on the time, the rank or random numbers"
        )


def policy_of(job: TrainJob, run_dir: Path) -> Policy:
    """The user's function that `job.balance` names.

    Raises:
        JobError: It cannot be imported.
    """
    try:
        return reference.load(located(job.balance, run_dir), reference.POLICY_MODULE)
    except JobError as error:
        raise JobError(f"balance={job.balance}: {error}") from error.__cause__
