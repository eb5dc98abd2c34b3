"""Every sample is used once per epoch, for every world size and through restarts."""

import itertools
import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.step.plan import Plan, WorkItem
from holdfast.data.loading.loader import Loader
from holdfast.data.loading.order import SampleOrder, shard_bounds
from holdfast.job.settings import LoaderSettings


class Numbers:
    """A data set whose sample `i` is the number `i`."""

    fingerprint = "numbers"

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def batch(self, indices, generator):
        return (torch.from_numpy(indices),)


def one_life(order, dataset, start, stop, world, depth):
    """What each step commits in one life of a run, `start` to `stop`, by step."""
    plan = Plan.even(order.num_shards, world)
    committed = {}
    for rank in range(world):
        units = [WorkItem(shard, range(shard, shard + 1)) for shard in plan.shards_of(rank)]
        loader = Loader(
            dataset, order, units, settings=LoaderSettings(prefetch=depth), check_abort=lambda: None
        )
        for step in range(start, stop):
            taken = [loader.take(step, item) for item in units]
            samples = [int(i) for loaded in taken if loaded for i in loaded.batch[0]]
            committed.setdefault(step, []).extend(samples)
        loader.close()
    return committed


@pytest.mark.parametrize("seed", range(200))
def test_every_sample_is_used_exactly_once_per_epoch_through_restarts(seed):
    draw = random.Random(seed)
    size, shards = draw.randint(1, 300), draw.randint(1, 12)
    order = SampleOrder(
        num_samples=size,
        batch_size=draw.randint(1, 64),
        num_shards=shards,
        epochs=draw.randint(1, 3),
        seed=seed,
        fingerprint="numbers",
    )
    dataset, ledger, step = Numbers(size), {}, 0
    while step < order.total_steps:
        # A life: it commits up to `stop`, of which only what is before `saved` is kept.
        stop = draw.randint(step + 1, order.total_steps)
        saved = stop if stop == order.total_steps else draw.randint(step, stop)
        world, depth = draw.randint(1, shards), draw.choice([0, 0, 2])
        ledger |= one_life(order, dataset, step, stop, world, depth)
        step = saved if draw.random() < 0.9 or saved == order.total_steps else step
    for epoch in range(order.epochs):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        used = Counter(sample for step in steps for sample in ledger[step])
        assert used == Counter(range(size))


def test_epochs_are_in_different_orders():
    order = SampleOrder(
        num_samples=100, batch_size=100, num_shards=1, epochs=2, seed=0, fingerprint="numbers"
    )
    first, second = (order.indices(step, range(1)).tolist() for step in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


@given(st.integers(1, 200), st.integers(1, 40), st.data())
def test_bounds_cover_all_samples_and_leave_no_single_one_where_more_would_fit(batch, shards, data):
    size = data.draw(st.integers(1, batch))
    bounds = shard_bounds(size, batch, shards)
    assert bounds[0] == 0
    assert bounds[-1] == size
    assert list(bounds) == sorted(bounds)
    sizes = [hi - lo for lo, hi in itertools.pairwise(bounds)]
    if batch >= 2 * shards and size > 1:
        assert 1 not in sizes


def test_a_full_batch_is_cut_evenly():
    assert shard_bounds(10, 10, 4) == (0, 2, 5, 7, 10)


def test_a_tail_of_one_joins_the_shard_before_it():
    assert shard_bounds(9, 16, 4) == (0, 4, 9, 9, 9)
    assert shard_bounds(10, 16, 4) == (0, 4, 8, 10, 10)
