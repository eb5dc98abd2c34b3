"""Chooses the shards of `shards: auto` with a balance other than even.

More shards can be divided finer among unlike workers, and each of them costs time:

    2 workers, one of them 4 times slower
     2 shards ─▶ 80 ms a step: the slower worker has half of the samples
     8 shards ─▶ 46 ms
    16 shards ─▶ 41 ms   chosen
    32 shards ─▶ 44 ms: a finer split saves less than 16 more shards cost

What more shards save is known from the times of the workers: how much longer the slowest of them
takes than all would if shards could be divided. What they cost is the rest of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.resolve.trials import TimedStep, say, timed_steps
from holdfast.core.balance.estimate import median
from holdfast.core.balance.planner import Cost, level, makespan
from holdfast.errors import HoldfastError, Interrupted, OutOfMemory
from holdfast.job.part import MAX_SHARDS
from holdfast.job.train_job import FINE, TrainJob
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions

KEY: Final = "shards=auto"
DOUBLINGS: Final = 5
"""Times that the fewest shards are doubled."""
TIE: Final = 0.02
"""Least gain of fewer shards: more of them stay divisible when a speed changes, and allow
more workers when the run is resumed."""
WORSE: Final = 0.05
"""Share by which a step is slower than the best so far if no more shards are tried."""

OF_SHARDS: Final = ("data", "forward", "backward", "collect")
"""Phases that every shard has."""
OF_STEPS: Final = ("reduce", "optimizer")
"""Phases that a step has once, without waits for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTrial:
    """Measurements of a trial.

    Attributes:
        shards: Shards of a step.
        step_s: Duration of a step.
        coarse_s: Part of that which a split without end would save.
    """

    shards: int
    step_s: float
    coarse_s: float


def with_best_shards(
    job: TrainJob, options: LaunchOptions, placement: Placement = THIS_HOST
) -> TrainJob:
    """The job with the number of shards whose steps are fastest; what was measured is printed.

    Args:
        job: For several workers, with a number of shards for a run that is not measured.
        options: Launch options of the run: its fork server is lent, unless an engine places agents.
        placement: The hosts of the run.

    Raises:
        Interrupted: A signal ended a trial.
        HoldfastError: The job fails.
    """
    if job.most_hosts > 1 or placement.engine is not None:
        where = "several hosts are" if job.most_hosts > 1 else "another host is"
        say(KEY, f"{job.shards} shards; {where} not measured yet, so give a better number if known")
        return job
    counts = candidates(job)
    if len(counts) > 1:
        say(KEY, f"measuring {', '.join(map(str, counts))} shards with balance={job.balance}")
    found = _measured(job, counts, options, placement) if len(counts) > 1 else []
    best = chosen(found) if found else counts[0]
    for line in report(found, best):
        say(KEY, line)
    if found and best == job.workers:
        more = min(FINE * best, job.batch)
        say(KEY, f"no shard can move if a worker slows down later; for that, give {more}")
    return job.model_copy(update={"shards": best})


def candidates(job: TrainJob) -> list[int]:
    """The numbers of shards to try: each worker and each shard has something to compute."""
    least = job.most_workers
    most = min(job.batch, MAX_SHARDS)
    doubled = [least << doublings for doublings in range(DOUBLINGS + 1)]
    return [least, *(count for count in doubled[1:] if count <= most)]


def _measured(
    job: TrainJob, counts: Sequence[int], options: LaunchOptions, placement: Placement
) -> list[ShardTrial]:
    found: list[ShardTrial] = []
    for shards in counts:
        trial = job.model_copy(update={"shards": shards})
        try:
            found.append(measured(shards, timed_steps(trial, options, KEY, placement)))
        except Interrupted:
            raise
        except HoldfastError as error:
            # fewer shards need more memory, and more of them may be too small for a model
            if not found and (not isinstance(error, OutOfMemory) or shards == counts[-1]):
                raise
            say(KEY, f"{shards} shards failed: {error}")
            if found:
                break
            continue
        if found[-1].step_s > (1 + WORSE) * min(each.step_s for each in found):
            break
    return found


def measured(shards: int, steps: Sequence[TimedStep]) -> ShardTrial:
    """Measurements from the steps of a trial.

    Args:
        shards: Shards of a step.
        steps: Steps to count. The last one has the plan to which they have come.
    """
    most = max(step.samples for step in steps)
    whole = [step for step in steps if step.samples == most]
    last = whole[-1].workers
    same = [step.workers for step in whole if step.workers["rank"] == last["rank"]]
    costs = []
    for place in range(len(last["rank"])):
        shard_s = [_sum(OF_SHARDS, row, place) / max(row["shards"][place], 1) for row in same]
        fixed_s = [_sum(OF_STEPS, row, place) for row in same]
        costs.append(Cost(median(fixed_s), max(median(shard_s), 1e-9), shards))
    counts = [int(count) for count in last["shards"]]
    return ShardTrial(
        shards=shards,
        step_s=median([step.seconds for step in whole]),
        coarse_s=max(makespan(costs, counts) - level(costs, shards), 0.0),
    )


def _sum(phases: Sequence[str], row: Mapping[str, Sequence[float]], place: int) -> float:
    return sum(row[phase][place] for phase in phases if phase in row)


def chosen(found: Sequence[ShardTrial]) -> int:
    """The most shards with which a step is about as fast as with the best number of them."""
    fastest_s = min(each.step_s for each in found)
    return max(each.shards for each in found if each.step_s <= (1 + TIE) * fastest_s)


def report(found: Sequence[ShardTrial], best: int) -> list[str]:
    """Lines about what was measured: the steps, and what more shards cost and save."""
    if not found:
        return [f"{best} shards: more would be empty"]
    steps = ", ".join(f"{_ms(each.step_s)} with {each.shards}" for each in found)
    place = next(place for place, each in enumerate(found) if each.shards == best)
    weighed = []
    if place > 0:
        cost, saved = _weighed(found[place - 1], found[place])
        weighed.append(
            f"{best} instead of {found[place - 1].shards} cost {cost} ms a step more "
            f"and save {saved} ms by the finer split"
        )
    if place + 1 < len(found):
        cost, saved = _weighed(found[place], found[place + 1])
        weighed.append(f"{found[place + 1].shards} would cost {cost} ms and save {saved} ms")
    return [f"{best} shards; ms a step: {steps}", *(["; ".join(weighed)] if weighed else [])]


def _weighed(fewer: ShardTrial, more: ShardTrial) -> tuple[str, str]:
    """Cost and gain of more shards, in ms."""
    saved_s = max(fewer.coarse_s - more.coarse_s, 0.0)
    return _ms(max(more.step_s - fewer.step_s + saved_s, 0.0)), _ms(saved_s)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}"
