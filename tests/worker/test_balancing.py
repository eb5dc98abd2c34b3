"""Balancing: costs belong to the members that had them, whichever generation it is."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.core.balance.times import StepTimes
from holdfast.job import load
from holdfast.wire.channel import pair
from holdfast.worker.agent_link import AgentLink
from holdfast.worker.context import WorkerContext
from holdfast.worker.progress import Progress
from holdfast.worker.timing.balancing import Balancing

SECOND_NS = 10**9


@pytest.fixture
def balance():
    return "dynamic"


@pytest.fixture
def scores():
    return (0.0, 0.0, 0.0)


@pytest.fixture
def members(balance, scores):
    """Three workers with 12 shards that begin generations together."""
    keys = {"name": "digits", "data": {"name": "digits"}, "shards": 12, "workers": 3}
    job, arena = load.check({**keys, "balance": balance}, where="test"), Arena.create(3)
    ends = [pair() for _ in range(3)]
    found = []
    for rank, (near, _) in enumerate(ends):
        group = Group(Arena(arena.fd), rank, 10.0, describe)
        link = AgentLink(WorkerStatus(arena, rank), arena, near)
        context, progress = WorkerContext.of(job, group, link, arena), Progress()
        found.append(
            (Balancing(context, progress, Path("unused"), score=scores[rank]), group, progress)
        )
    yield found
    for channel in itertools.chain(*ends):
        channel.close()


@pytest.fixture
def joined(members):
    """Rank 0 of three, in its first generation: `(balancing, group, progress)`."""
    for _, group, _ in members:
        group.enter(1, (0, 1, 2))
    begin(members)
    return members[0]


def begin(members):
    with ThreadPoolExecutor(len(members)) as threads:
        list(threads.map(lambda each: each[0].begin_generation({}, slot_bytes=64), members))


def times(balancing, *per_shard_s):
    counts = balancing.plan.counts
    return [StepTimes(n * s * SECOND_NS) for n, s in zip(counts, per_shard_s, strict=True)]


def test_the_first_step_of_a_generation_is_not_measured(joined):
    balancing, _, progress = joined
    balancing.observe(times(balancing, 1, 1, 4), is_whole=True)
    assert progress.costs == []
    balancing.observe(times(balancing, 1, 1, 4), is_whole=True)
    assert [rank for rank, _, _ in progress.costs] == [0, 1, 2]
    assert balancing.replan()
    assert balancing.plan.counts[2] < min(balancing.plan.counts[:2])


def test_a_step_that_is_completed_in_the_next_generation_counts_for_its_own_members(
    members, joined
):
    balancing, _, progress = joined
    balancing.observe(times(balancing, 1, 1, 4), is_whole=True)
    measured = times(balancing, 1, 1, 4)
    stay = [members[0], members[2]]
    for _, each, _ in stay:
        each.enter(2, (0, 2))
    balancing.observe(measured, is_whole=True)
    assert {rank: cost for rank, cost, _ in progress.costs} == {0: 1, 1: 1, 2: 4}
    stay[1][2].costs = progress.costs
    begin(stay)
    assert len(balancing.plan.counts) == 2
    assert balancing.plan.counts[0] > balancing.plan.counts[1]


def test_a_step_with_fewer_samples_is_not_measured(joined):
    balancing, _, progress = joined
    for is_whole in (True, False):
        balancing.observe(times(balancing, 1, 1, 4), is_whole=is_whole)
    assert progress.costs == []


@pytest.mark.parametrize("balance", ["proportional", "hybrid"])
@pytest.mark.parametrize(
    ("scores", "counts", "unscored"),
    [((4.0, 4.0, 1.0), (6, 5, 1), ()), ((4.0, 0.0, 1.0), (4, 4, 4), (1,))],
)
def test_a_score_that_is_not_known_makes_the_first_shares_equal(joined, counts, unscored):
    balancing, _, _ = joined
    assert balancing.plan.counts == counts
    assert balancing.unscored == unscored


@pytest.mark.parametrize("balance", ["hybrid"])
def test_measured_times_stand_for_missing_scores(members, joined):
    balancing, _, _ = joined
    assert balancing.unscored == (0, 1, 2)
    for _, each, progress in members:
        progress.costs = [(0, 1.0, 0.0), (1, 1.0, 0.0), (2, 4.0, 0.0)]
        each.enter(2, (0, 1, 2))
    begin(members)
    assert balancing.unscored == ()
    assert balancing.plan.counts[2] < min(balancing.plan.counts[:2])
