"""Balancing: costs belong to the members that had them, whichever generation it is."""

from pathlib import Path

import pytest

from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import WorkerStatus
from holdfast.core.balance.balance import StepTimes
from holdfast.job import load
from holdfast.transport.shared_memory import SharedMemoryGroup
from holdfast.wire.channel import pair
from holdfast.worker import barriers
from holdfast.worker.agent_link import AgentLink
from holdfast.worker.balancing import Balancing
from holdfast.worker.context import WorkerContext
from holdfast.worker.progress import Progress

SECOND_NS = 10**9


@pytest.fixture
def joined():
    """Rank 0 of three, in its first generation: `(balancing, group, progress)`."""
    keys = {"name": "digits", "data": {"name": "digits"}, "shards": 12, "workers": 3}
    job, arena = load.check({**keys, "balance": "dynamic"}, where="test"), Arena.create(3)
    group = SharedMemoryGroup(arena, 0, 10.0, barriers.describe)
    group.enter(1, (0, 1, 2))
    near, far = pair()
    context = WorkerContext.of(job, group, AgentLink(WorkerStatus(arena, 0), arena, near), arena)
    progress = Progress()
    balancing = Balancing(context, progress, Path("unused"))
    balancing.begin_generation()
    yield balancing, group, progress
    near.close()
    far.close()


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


def test_a_step_that_is_completed_in_the_next_generation_counts_for_its_own_members(joined):
    balancing, group, progress = joined
    balancing.observe(times(balancing, 1, 1, 4), is_whole=True)
    measured = times(balancing, 1, 1, 4)
    group.enter(2, (0, 2))
    balancing.observe(measured, is_whole=True)
    assert {rank: cost for rank, cost, _ in progress.costs} == {0: 1, 1: 1, 2: 4}
    balancing.begin_generation()
    assert len(balancing.plan.counts) == 2
    assert balancing.plan.counts[0] > balancing.plan.counts[1]


def test_a_step_with_fewer_samples_is_not_measured(joined):
    balancing, _, progress = joined
    for is_whole in (True, False):
        balancing.observe(times(balancing, 1, 1, 4), is_whole=is_whole)
    assert progress.costs == []
