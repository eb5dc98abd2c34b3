"""A task on unequal workers, and balance policies, as a user would write them."""

import random
import time
from contextlib import contextmanager

import torch.nn.functional as F
from sample_tasks import Points, adamw
from torch import nn


def main(session):
    """Trains on points; `params.slow` says how many times longer a rank takes."""
    slow = session.job.params["slow"]
    model, _ = session.attach(lambda: nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 2)), adamw)
    for shard in session.shards(Points(), epochs=6):
        with lasting(slow.get(str(session._member.group.rank), 1)):
            session.backward(F.cross_entropy(model(shard.x), shard.y))


def by_sample(session):
    """Like `main`, but what a rank takes grows with its samples: larger shards cost no more."""
    slow = session.job.params["slow"]
    model, _ = session.attach(lambda: nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 2)), adamw)
    for shard in session.shards(Points(), epochs=session.job.epochs):
        with lasting(slow.get(str(session._member.group.rank), 1) * len(shard.y)):
            session.backward(F.cross_entropy(model(shard.x), shard.y))


@contextmanager
def lasting(times):
    """Take so many times 3 ms of the processor."""
    end = time.thread_time() + times / 300
    yield
    while time.thread_time() < end:
        pass


def restless(costs, num_shards):
    """Another plan in each step, from the digits of what was measured."""
    counts = [1] * len(costs)
    chance = random.Random(repr(costs))
    for _ in range(num_shards - len(costs)):
        counts[chance.randrange(len(costs))] += 1
    return counts


def impure(costs, num_shards):
    """Asks the clock, so each worker has a plan of its own."""
    first = 1 + time.perf_counter_ns() % (num_shards - 1)
    return [first, num_shards - first]


def greedy(costs, num_shards):
    """All shards to the first worker."""
    return [num_shards, *[0] * (len(costs) - 1)]
