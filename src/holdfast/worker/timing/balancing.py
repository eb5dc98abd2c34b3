"""Balancing: measures the steps of this worker, and gives more shards to faster ones.

    shards of step s ─▶ measured ─▶ reduction: all get the times of all ─▶ commit
                                                                             │
    shards of step s + 1  ◀── plan, the same on every worker ◀── Balance ◀───┘

The times travel with the gradient, so a plan costs no message and is never late. What a worker has
measured of a shard is kept in `Progress.costs`, from which the next generation begins, and a
resumed run.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.core.balance.balance import Balance, Policy
from holdfast.core.balance.planner import within
from holdfast.core.balance.stragglers import Straggler, StragglerFinder
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan
from holdfast.errors import JobError
from holdfast.job.train_keys import BALANCES, MEASURED, SCORED
from holdfast.linux.host_memory import available
from holdfast.tasks import reference
from holdfast.tasks.code import located
from holdfast.worker.context import WorkerContext
from holdfast.worker.progress import Progress


class Balancing:
    """The plan of one worker, which follows from the times of all.

    Args:
        context: Context of this worker.
        progress: Progress of the run; the costs in it are written here.
        run_dir: Directory of the run, which has the code of a run of several hosts.
        score: The speed of this worker's device by its profile; 0 if it is not known.

    Attributes:
        plan: Assignment of shards to members.
        straggler: The member that should leave for standby; None if there is none.
        unscored: Members without a score, for lack of which this generation begins with equal
            shares.
    """

    def __init__(
        self, context: WorkerContext, progress: Progress, run_dir: Path, score: float
    ) -> None:
        self._job = context.job
        self._group = context.group
        self._progress = progress
        self._score = score
        self.plan = Plan(counts=())
        self._is_typical = False
        self.straggler: Straggler | None = None
        self.unscored: tuple[int, ...] = ()
        self._stragglers: StragglerFinder | None = None
        self._members: tuple[int, ...] = ()
        self._caps: Sequence[int] = ()
        self._balance: Balance | None = None
        self._spare_slots: int | None = None
        self._policy = (
            None if self._job.balance in BALANCES else policy_of(self._job.balance, run_dir)
        )

    def begin_generation(self, caps: Mapping[int, int], slot_bytes: int = 0) -> None:
        """Plan for the members of a new generation.

        Args:
            caps: The most shards of ranks that have run out of memory.
            slot_bytes: Memory of one partial sum; 0 if nothing is trained.

        Raises:
            Aborted: The generation is over.
        """
        self._members = members = self._group.members
        shards = self._job.shards
        self._caps = [caps.get(rank, shards) for rank in members]
        self.plan = Plan(counts=within(self._job.plan(len(members)).counts, self._caps))
        self.straggler = None
        self.unscored = ()
        self.ignore_step()  # what remains of it may not be divided by the plan
        self._balance = self._stragglers = None
        if len(members) == 1 or 0 in self.plan.counts or not slot_bytes:
            return
        if self._job.balance == "even":
            self._balance = self._balance_of(is_fixed=True)
            return
        # Every member knows the same numbers from here on, and plans alike.
        scores, spare = self._exchanged(slot_bytes)
        balance = self._balance_of(is_fixed=self._job.balance == "proportional", spare=spare)
        known = {rank: (per_shard, fixed) for rank, per_shard, fixed in self._progress.costs}
        balance.begin([known.get(rank) for rank in members], scores)
        self._balance = balance
        self.plan = Plan(counts=balance.counts)
        if self._job.balance in MEASURED:
            self._stragglers = StragglerFinder(members, self._job.shards)

    def _balance_of(self, *, is_fixed: bool, spare: Sequence[int] = ()) -> Balance:
        # A worker that merges its shards has one partial sum, whatever the plan.
        hosts = [] if self._job.merges_shards else self._hosts()
        even = self.plan
        slots = _slots_of(even, hosts)

        def fits(counts: Sequence[int]) -> bool:
            wanted = _slots_of(Plan(counts=tuple(counts)), hosts)
            limits = zip(wanted, slots, spare, strict=True)
            return all(more - before <= most for more, before, most in limits)

        return Balance(
            self._job.shards,
            even.counts,
            hosts,
            self._policy,
            is_fixed=is_fixed,
            caps=self._caps,
            fits=fits,
        )

    def _exchanged(self, slot_bytes: int) -> tuple[list[float], list[int]]:
        """The scores of all members, if all are to be used, and how many more partial sums each
        host has the memory for.

        Raises:
            Aborted: The generation is over.
        """
        if self._spare_slots is None:  # before it holds any: half is left for activations
            self._spare_slots = available().size_bytes // 2 // slot_bytes
        own = json.dumps([self._score, self._spare_slots]).encode()
        step = self._progress.step
        found = [json.loads(each) for each in self._group.gather(WorkerTag.PLAN, step, own)]
        spare = [min(found[place][1] for place in host) for host in self._hosts()]
        if self._job.balance not in SCORED:
            return [], spare
        unscored = tuple(
            rank for rank, (score, _) in zip(self._members, found, strict=True) if not score > 0
        )
        if unscored:
            # the scores that are known say nothing about the others: all begin alike
            has_costs = self._job.balance in MEASURED and bool(self._progress.costs)
            self.unscored = () if has_costs else unscored
            return [], spare
        return [score for score, _ in found], spare

    def _hosts(self) -> list[range]:
        """The members of each host, by their place."""
        network = self._group.network
        members = self._group.members
        if network is None:
            return [range(len(members))]
        host_of = {rank: host for host, ranks in enumerate(network.hosts.ranks) for rank in ranks}
        runs = itertools.groupby(range(len(members)), lambda place: host_of[members[place]])
        return [range(places[0], places[-1] + 1) for _, run in runs for places in [list(run)]]

    @property
    def digest(self) -> int:
        """Digest of the plan, which all members must have in common."""
        return self.plan.digest

    def ignore_step(self) -> None:
        """Note that the times of the current step are not typical, on any worker."""
        self._is_typical = False

    def observe(self, times: Sequence[StepTimes], *, is_whole: bool) -> bool:
        """Take the times of a committed step. The group may have new members already, if this
        worker completes the step while it joins a generation.

        Args:
            times: Times of each member.
            is_whole: True if the step had as many samples as most have.

        Returns:
            Whether the times are typical.
        """
        is_typical = self._is_typical and is_whole
        self._is_typical = True
        if self._balance is None or not is_typical:
            return is_typical
        self._balance.observe(times)
        # Costs outlive the generation: the next plan starts from them.
        self._progress.costs = [
            (rank, cost.per_shard_s, cost.fixed_s)
            for rank, cost in zip(self._members, self._balance.costs(), strict=True)
        ]
        if self._stragglers is not None:
            self.straggler = self._stragglers.observe(self._balance.costs())
        return True

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


def _slots_of(plan: Plan, hosts: Sequence[range]) -> list[int]:
    """Most partial sums that the workers of each host have at a time."""
    shards = plan.num_shards
    return [
        sum(tree.partials_needed(plan.shards_of(place), shards) for place in host) for host in hosts
    ]


def policy_of(balance: str, run_dir: Path) -> Policy:
    """The user's function that `balance` names.

    Raises:
        JobError: It cannot be imported.
    """
    try:
        return reference.load(located(balance, run_dir), reference.POLICY_MODULE)
    except JobError as error:
        raise JobError(f"balance={balance}: {error}") from error.__cause__
