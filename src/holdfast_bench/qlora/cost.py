"""Cost: time and money of a fine-tuning job on one host or on several. Pure.

With H hosts, b samples a host and step, n samples in all, a step time c of one host alone, a slot
of S bytes, a link of B bytes per second and a latency of α seconds:

    s = 3α + 2 S (H-1) / (H B)        time to synchronize a step, none on one host
    e = c / (c + s)                   efficiency
    T = t0 + ⌈n / (H b)⌉ (c + s)      time of the job, with a start of t0
    cost = H T price                  of all hosts

The formula of s is that of a reduce-scatter and an all-gather, each of which moves S (H-1) / H
through every link (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 2005), with three messages one after the other.

As e is at most 1, one host is the cheapest as long as no deadline is set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0
_MESSAGES = 3
"""Messages of a reduction between hosts, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A network between hosts.

    Attributes:
        bytes_per_s: Its rate; above 0.
        latency_s: Time of an empty message.
    """

    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """Model of the time of a job.

    Attributes:
        compute_s: Time of a step of one host alone; above 0.
        batch: Samples of each host and step.
        slot_bytes: Size of the reduced gradient.
        link: Between hosts.
        start_s: Seconds from the start to the first step on one host.
        start_of_several_s: The same on several hosts.
    """

    compute_s: float
    batch: int
    slot_bytes: int
    link: Link
    start_s: float = 0.0
    start_of_several_s: float = 0.0

    def sync_s(self, hosts: int) -> float:
        """Time to synchronize a step."""
        if hosts == 1:
            return 0.0
        moved = 2 * self.slot_bytes * (hosts - 1) / hosts
        return _MESSAGES * self.link.latency_s + moved / self.link.bytes_per_s

    def step_s(self, hosts: int) -> float:
        """Time of a step."""
        return self.compute_s + self.sync_s(hosts)

    def efficiency(self, hosts: int) -> float:
        """Throughput of a host as a share of that of a host alone."""
        return self.compute_s / self.step_s(hosts)

    def samples_per_s(self, hosts: int) -> float:
        """Throughput of all hosts."""
        return hosts * self.batch / self.step_s(hosts)

    def started_s(self, hosts: int) -> float:
        """Seconds from the start to the first step."""
        return self.start_s if hosts == 1 else self.start_of_several_s

    def job_s(self, hosts: int, samples: int) -> float:
        """Time of a job."""
        return self.started_s(hosts) + self.num_steps(hosts, samples) * self.step_s(hosts)

    def num_steps(self, hosts: int, samples: int) -> int:
        """Steps of a job; the last one may not be full."""
        return math.ceil(samples / (hosts * self.batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Time and cost of a job on some number of hosts.

    Attributes:
        hosts: How many.
        hours: From its start to its end.
        cost: Of all hosts.
        cost_per_1000: Cost of 1,000 samples.
    """

    hosts: int
    hours: float
    cost: float
    cost_per_1000: float


def bill(hosts: int, job_s: float, samples: int, price: float) -> Bill:
    """Bill of a job.

    Args:
        hosts: How many.
        job_s: Seconds from its start to its end.
        samples: In all; above 0.
        price: Of a host, per hour.
    """
    hours = job_s / SECONDS_PER_HOUR
    cost = hosts * hours * price
    return Bill(hosts=hosts, hours=hours, cost=cost, cost_per_1000=1000 * cost / samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """On how many hosts a job should run.

    Attributes:
        bill: Of the cheapest number of hosts within the deadline and the budget; None if none is.
        reason: Why, in words.
        faster_from: Jobs with more samples than this end sooner on the most hosts that were
            considered than on one; None if none does.
        one_host_until: The most samples that one host finishes by the deadline; None without one.
    """

    bill: Bill | None
    reason: str
    faster_from: int | None
    one_host_until: int | None


def recommend(
    model: TimeModel,
    bills: Sequence[Bill],
    *,
    deadline_h: float | None = None,
    budget: float | None = None,
) -> Recommendation:
    """The cheapest number of hosts, of those with the same cost the smallest.

    Args:
        model: Of the job's steps.
        bills: For each number of hosts to choose from, in ascending order.
        deadline_h: Hours that the job may take.
        budget: What it may cost.
    """
    in_time = [each for each in bills if deadline_h is None or each.hours <= deadline_h]
    fitting = [each for each in in_time if budget is None or each.cost <= budget]
    best = min(fitting, key=lambda each: each.cost, default=None)
    return Recommendation(
        bill=best,
        reason=_reason(best, bills, in_time, deadline_h, budget),
        faster_from=faster_from(model, bills[-1].hosts),
        one_host_until=None if deadline_h is None else most_samples(model, 1, deadline_h),
    )


def most_samples(model: TimeModel, hosts: int, hours: float) -> int:
    """The most samples that some number of hosts finishes in a time."""
    seconds = hours * SECONDS_PER_HOUR - model.started_s(hosts)
    return max(0, math.floor(seconds / model.step_s(hosts))) * hosts * model.batch


def faster_from(model: TimeModel, hosts: int) -> int | None:
    """The samples above which several hosts finish sooner than one; None if they never do."""
    gain_s = (model.step_s(1) - model.step_s(hosts) / hosts) / model.batch
    if hosts == 1 or gain_s <= 0:
        return None
    return max(0, math.ceil((model.started_s(hosts) - model.started_s(1)) / gain_s))


def _reason(
    best: Bill | None,
    bills: Sequence[Bill],
    in_time: Sequence[Bill],
    deadline_h: float | None,
    budget: float | None,
) -> str:
    if best is not None:
        if deadline_h is None:
            return (
                "without a deadline one host is the cheapest: every further host adds the time to "
                "synchronize"
                if best.hosts == 1
                else "the cheapest of these numbers of hosts"
            )
        return f"the cheapest number of hosts that ends within {deadline_h:g} h"
    if not in_time:
        fastest = min(bills, key=lambda each: each.hours)
        return (
            f"{fastest.hosts} hosts take {fastest.hours:.2f} h, longer than the deadline of "
            f"{deadline_h:g} h: allow more hosts or more time"
        )
    cheapest = min(in_time, key=lambda each: each.cost)
    return (
        f"{cheapest.hosts} hosts cost {cheapest.cost:.2f}, more than the budget of {budget:g}: "
        "allow a later deadline or a larger budget"
    )
