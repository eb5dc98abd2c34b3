"""Sums on devices have the bits of one worker, however late a device does what it is asked to."""

import functools
import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from holdfast.arena.device.mapped import MappedLayout, MappedMemory
from holdfast.arena.memory import Arena
from holdfast.collectives import device_sums
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.device_queue import DeviceQueue
from holdfast.collectives.device_sums import DeviceSums, largest_share
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.gradient_sets import GradientSet
from holdfast.collectives.group import Group
from holdfast.collectives.reduction import ReductionMemory
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan

CPU = torch.device("cpu")
PARAMETERS = {
    "long": torch.empty(300_000),
    "short": torch.empty(7, 5, dtype=torch.bfloat16),
    "other": torch.empty(140_001),
}
BUFFERS = {"mean": torch.empty(11), "count": torch.zeros((), dtype=torch.int64)}
LAYOUT = SlotLayout(PARAMETERS, BUFFERS)
REST = SlotLayout({}, BUFFERS)
STEPS = 3
LAST = 99
"""Tag of the barrier after a step."""


class LateQueue(DeviceQueue):
    """A queue that does its work when it is waited for, or at random before.

    Args:
        seed: Of the random numbers.
        ignores: Number of the wait in every step that does not wait: 0 before partial sums are
            read, 1 before shares are.
    """

    def __init__(self, seed, ignores=None):
        super().__init__(CPU)
        self._chance = random.Random(seed)
        self._work = []
        self._ignores = ignores
        self._waits = 0

    def run(self, work):
        self._work.append(work)
        self._do(self._chance.randrange(len(self._work)))  # never the newest

    def wait(self):
        self._waits += 1
        if (self._waits - 1) % 2 != self._ignores:
            self.finish()

    def finish(self):
        self._do(len(self._work))

    def _do(self, count):
        for _ in range(count):
            self._work.pop(0)()


def new_slot():
    return Slot(torch.zeros(LAYOUT.layout.size_bytes, dtype=torch.uint8), LAYOUT)


def gradients_of(shard, step, empty):
    """A set of one shard; None if it has no samples."""
    if shard in empty:
        return None
    drawn = torch.Generator().manual_seed(1000 * step + shard)
    found = GradientSet(REST, CPU)
    made = [torch.randn(p.shape, generator=drawn).to(p.dtype) for p in PARAMETERS.values()]
    if shard % 3 == 1:
        made[1] = None  # a parameter that this shard does not use
    found.begin(made, 0.25, torch.rand((), generator=drawn))
    for each in found.rest.sums:
        each.copy_(torch.randn(each.shape, generator=drawn))
    found.rest.kept[0].fill_(shard)
    found.rest.used.fill_(shard % 2)
    found.write_logged({"accuracy": shard / 10})
    return found


def sums_of(shards, num_leaves, step, empty):
    """What one worker has computed: the number of each node's set, and the sets."""
    sets = {}
    table = [tree.ABSENT] * tree.num_nodes(num_leaves)
    for shard in shards:
        made = gradients_of(shard, step, empty)
        if made is not None:
            sets[shard] = made
        number = tree.EMPTY if made is None else shard
        tree.carry(table, tree.leaf(shard, num_leaves), number, lambda a, b: sets[a].add(sets[b]))
    return table, sets


def facts(found):
    """All that a mean consists of, in a form that can be compared bit by bit."""
    gradients = [None if each is None else each.clone() for each in found.gradients]
    return [
        *gradients,
        *(each.clone() for each in (*found.rest.sums, *found.rest.kept, found.rest.used)),
    ]


def same(left, right):
    return all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )


@functools.cache
def alone(num_leaves, empty):
    """The mean of each step as a lone worker computes it."""
    means = []
    for step in range(STEPS):
        table, sets = sums_of(range(num_leaves), num_leaves, step, empty)

        def total(term, sets=sets):
            if isinstance(term, tree.Partial):
                return sets[term.slot]
            left = total(term.left, sets)
            left.add(total(term.right, sets))
            return left

        found = total(tree.reduction({0: table}, num_leaves))
        found.divide(found.weight)
        means.append(facts(found))
    return means


class Worker:
    """A worker of one host, which is a thread here."""

    def __init__(self, group, memory, num_leaves, mapped, queue):
        self.group = group
        self.mapped = mapped
        self.queue = queue
        self._num_leaves = num_leaves
        self._sums = DeviceSums(group, memory, CPU, mapped, queue=queue)
        self._reducer = TreeReducer(group, memory, num_leaves, on_device=self._sums)
        self._mean = GradientSet(REST, CPU)

    def train(self, counts, empty):
        """The mean of each step."""
        means = []
        for step in range(STEPS):
            shards = Plan(counts=counts).shards_of(self.group.rank)
            table, sets = sums_of(shards, self._num_leaves, step, empty)
            published = self._sums.publish(table, sets.__getitem__)
            reduced = self._reducer.reduce(published, step, 0, 0, StepTimes())
            self.queue.finish()
            self._mean.take(reduced, self._sums.root)
            means.append(facts(self._mean))
            self.group.barrier(LAST, step)
        return means


def train(counts, way, num_slots=1, empty=(), queue=LateQueue):
    """The means of all workers of a host; each computes so many shards."""
    world_size = len(counts)
    num_leaves = sum(counts)
    arena = Arena.create(world_size)
    numbers = range(2 * tree.max_partials(num_leaves))
    slots = {place: new_slot() for place in itertools.product(range(world_size), numbers)}
    memory = ReductionMemory(
        layout=LAYOUT,
        partial_sum=lambda rank, number: slots[rank, number],
        root=new_slot(),
        tables=torch.zeros((world_size, tree.num_nodes(num_leaves)), dtype=torch.int64),
        norms=torch.zeros(len(LAYOUT.blocks), dtype=torch.float64),
        times=torch.zeros((world_size, len(StepTimes._fields)), dtype=torch.int64),
    )
    layout = MappedLayout(
        replica_bytes=64,
        share_bytes=largest_share(LAYOUT, world_size),
        slot_bytes=LAYOUT.layout.size_bytes,
        num_slots=num_slots,
    )
    workers = []
    for rank in range(world_size):
        group = Group(Arena(arena.fd), rank, 20, describe)
        group.enter(1, tuple(range(world_size)))
        mapped = None
        if way == "mapped":
            mapped = MappedMemory(CPU, layout)
            mapped.is_readable = True
        workers.append(Worker(group, memory, num_leaves, mapped, queue(rank)))
    for worker, other in itertools.permutations(workers, 2) if way == "mapped" else ():
        worker.mapped.open(other.group.rank, os.dup(other.mapped.fd))
    with ThreadPoolExecutor(world_size) as threads:
        found = list(threads.map(lambda worker: worker.train(counts, empty), workers))
    for worker in workers if way == "mapped" else ():
        os.close(worker.mapped.fd)
    arena.close()
    return found


@pytest.mark.parametrize("way", ["mapped", "staged"])
@pytest.mark.parametrize(
    ("counts", "empty", "num_slots"),
    [
        ((1, 1), (), 1),
        ((4, 4), (3,), 1),
        ((1, 6), (), 1),  # three partial sums, two of which fit only into the arena
        ((1, 6), (), 3),
        ((3, 0, 5), (0, 1, 2), 1),  # two workers with nothing to show
        ((2, 3, 2, 1), (6,), 2),
    ],
    ids=str,
)
def test_the_mean_has_the_bits_of_one_worker(counts, empty, num_slots, way, monkeypatch):
    monkeypatch.setattr(device_sums, "PIECE_BYTES", 1 << 19)
    wanted = alone(sum(counts), empty)
    for found in train(counts, way, num_slots, empty):
        assert all(map(same, found, wanted))


@pytest.mark.parametrize("way", ["mapped", "staged"])
@pytest.mark.parametrize("ignored", [0, 1])
def test_a_wait_that_is_left_out_is_noticed(ignored, way):
    noticed = 0
    for seed in range(20):
        chance = random.Random(seed)
        counts = chance.choice([(1, 1), (2, 1), (1, 1, 1)])

        def queue(rank, seed=seed):
            return LateQueue(100 * seed + rank, ignored)

        found = train(counts, way, queue=queue)
        wanted = alone(sum(counts), ())
        noticed += not all(all(map(same, each, wanted)) for each in found)
    assert noticed >= 18, noticed
