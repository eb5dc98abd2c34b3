"""Balance: the plan of each step, from the times of the steps before.

    observe(times of step s) ──▶ plan of step s + 1

Every worker has one, and gives it the same committed times: all come to the same plan, without a
message. So a plan is never late, and none disagrees.

A new plan has to be worth it: it must save 2 % of a step, and more than the estimates may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.core.balance.estimate import Estimate, median
from holdfast.core.balance.planner import ALIGNED_SLACK, Cost, aligned, fastest, makespan, within
from holdfast.core.balance.times import StepTimes
from holdfast.errors import JobError

Policy = Callable[[list[Cost], int], Sequence[int]]
"""Chooses the shards of each worker from what a step costs them, and the number of shards."""

GAIN: Final = 0.02
"""Least share of a step that a new plan must save."""
ERRORS: Final = 3.0
"""Least saving of a new plan, standard errors."""
ERRORS_EARLY: Final = 1.0
"""Least saving of a new plan as long as a worker has few samples, standard errors."""
EARLY: Final = 12
REST_STEPS: Final = 3
"""Steps between a plan and the next one, except after a change of speed."""
SLACKS: Final = (ALIGNED_SLACK, 1.05, 1.1, 1.2, 1.5)
"""Factors by which a plan that needs less memory may take longer; tried one after the other."""
EVERY: Final = 8
"""Steps between two looks for a better plan, except in the first ones and after a change."""


class Balance:
    """The plan of the steps of one generation.

    Args:
        num_shards: Shards of a step.
        counts: The first plan: shards of each worker.
        hosts: The workers of each host, in order; empty if plans differ in time only, not in the
            partial sums that they leave.
        policy: Chooses the counts instead, in every step; None for the fastest ones.
        is_fixed: True if the first plan stays, whatever is measured.
        caps: The most shards of each worker; by default all.
        fits: True if the memory is enough for a plan.
    """

    def __init__(
        self,
        num_shards: int,
        counts: Sequence[int],
        hosts: Sequence[range],
        policy: Policy | None = None,
        *,
        is_fixed: bool = False,
        caps: Sequence[int] = (),
        fits: Callable[[Sequence[int]], bool] = lambda _: True,
    ) -> None:
        self._policy = policy
        self._is_fixed = is_fixed
        self._fits = fits
        self._num_shards = num_shards
        self._caps = caps or [num_shards] * len(counts)
        self._hosts = hosts
        self.counts = tuple(counts)
        self.estimates = [Estimate() for _ in counts]
        self._steps_since = REST_STEPS
        self._steps = 0

    def begin(
        self, known: Sequence[tuple[float, float] | None], scores: Sequence[float] = ()
    ) -> None:
        """Plan from what is known before the first step, if anything is.

        Args:
            known: Cost of a shard and of the rest of a step for each worker, seconds. The median
                stands for those that are not known.
            scores: The speed of each worker by its profile, relative to the others; none if it is
                not to be used.
        """
        if any(each is not None for each in known) and not self._is_fixed:
            for estimate, cost in zip(self.estimates, _completed(known, scores), strict=True):
                estimate.add(*cost)
            costs = self.costs()
            if self._policy is not None:
                self.counts = self._chosen(self._policy, costs)
                return
        elif scores:
            costs = [
                Cost(0.0, 1 / score, cap) for score, cap in zip(scores, self._caps, strict=True)
            ]
        else:
            return
        self.counts = self._fitting(costs, fastest(costs, self._num_shards)) or self.counts

    def observe(self, times: Sequence[StepTimes]) -> None:
        """Take the times of each worker in a step with the current plan; `counts` is then the next.

        Raises:
            JobError: The policy has returned no plan.
        """
        self._steps += 1
        self._steps_since += 1
        # Every estimate takes its sample, also those after one that has changed.
        changes = [
            estimate.add(max(each.shards_ns, 1) / 1e9 / count, each.rest_ns / 1e9)
            for estimate, each, count in zip(self.estimates, times, self.counts, strict=True)
        ]
        has_changed = any(changes)
        if self._is_fixed:
            return
        if self._policy is not None:
            self.counts = self._chosen(self._policy, self.costs())
            return
        # A look at the plan costs time, so it is rare once the estimates are good.
        is_early = min(estimate.samples for estimate in self.estimates) < EARLY
        is_due = is_early or self._steps % EVERY == 0
        if has_changed or (is_due and self._steps_since >= REST_STEPS):
            self._plan(ERRORS_EARLY if is_early else ERRORS)

    def costs(self) -> list[Cost]:
        """Cost of a step for each worker, once that was measured."""
        return [
            Cost(estimate.fixed_s, estimate.per_shard_s, cap)
            for estimate, cap in zip(self.estimates, self._caps, strict=True)
        ]

    def _plan(self, errors: float) -> None:
        """Take the fastest plan if it saves more than so many standard errors."""
        costs = self.costs()
        best = fastest(costs, self._num_shards)
        now = makespan(costs, self.counts)
        then = makespan(costs, best)
        gain = now - then
        # The gain must exceed so many standard errors: compared as squares, without a root.
        variance = self._variance(costs, self.counts) + self._variance(costs, best)
        if gain <= GAIN * now or gain * gain <= errors * errors * variance:
            return
        # The plan that fits may be the current one, rounded to fewer partial sums.
        counts = self._fitting(costs, best)
        if counts is not None and counts != self.counts:
            self.counts = counts
            self._steps_since = 0

    def _fitting(self, costs: Sequence[Cost], best: Sequence[int]) -> tuple[int, ...] | None:
        """A plan close to the fastest one for which the memory is enough; None if there is none."""
        if not self._hosts:
            return tuple(best)
        plans = (aligned(costs, best, self._hosts, slack) for slack in SLACKS)
        return next((plan for plan in plans if self._fits(plan)), None)

    def _chosen(self, policy: Policy, costs: list[Cost]) -> tuple[int, ...]:
        """Ask a policy for a plan.

        Raises:
            JobError: It is no plan.
        """
        try:  # the user's: it may return or raise anything
            chosen: object = policy(list(costs), self._num_shards)
        except Exception as error:
            raise JobError(
                f"the balance policy raised {type(error).__name__}: {error}; it is called with "
                "the costs of the workers and the number of shards"
            ) from error
        if isinstance(chosen, Sequence) and len(chosen) == len(costs):
            is_plan = all(type(count) is int and count > 0 for count in chosen)
            if is_plan and sum(chosen) == self._num_shards:
                return within(chosen, self._caps)
        raise JobError(
            f"the balance policy returned {chosen!r:.200}; it must return a list of {len(costs)} "
            f"whole numbers, each at least 1 and {self._num_shards} in all"
        )

    def _variance(self, costs: Sequence[Cost], counts: Sequence[int]) -> float:
        """Variance of the plan's makespan: that of its slowest worker."""
        ends = [cost.seconds(count) for cost, count in zip(costs, counts, strict=True)]
        slowest = ends.index(max(ends))
        return self.estimates[slowest].variance * counts[slowest] * counts[slowest]


def _completed(
    known: Sequence[tuple[float, float] | None], scores: Sequence[float]
) -> list[tuple[float, float]]:
    """Cost of each worker, as known or as is likely: the median, at the speed of its score."""
    speeds = scores or [1.0] * len(known)
    costs = [(each, speed) for each, speed in zip(known, speeds, strict=True) if each is not None]
    # A shard is the same work on all workers: its time multiplied by the worker's speed.
    work = median([cost[0] * speed for cost, speed in costs])
    rest = median([cost[1] for cost, _ in costs])
    return [
        (work / speed, rest) if each is None else each
        for each, speed in zip(known, speeds, strict=True)
    ]
