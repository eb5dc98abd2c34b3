"""A task on unequal workers, and balance policies, as a user would write them."""

import json
import os
import random
import signal
import time
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from sample_tasks import Points, adamw
from torch import nn

from faults import is_first


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


class Numbers:
    """Samples without noise, so that it does not matter which of them are read together."""

    fingerprint = "numbers"

    def __len__(self):
        return 90

    def batch(self, indices, generator):
        numbers = torch.as_tensor(indices)
        x = numbers.float() / 90
        return torch.stack([x, 1 - x], 1), (numbers >= 45).long(), numbers


class SlowBackward(torch.autograd.Function):
    """Does nothing; its backward pass takes so many times 3 ms of the processor."""

    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with lasting(ctx.times):
            return gradient, None


class Net(nn.Module):
    """Two layers. The gradient of the first is late, so DDP waits for it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 64)
        self.second = nn.Linear(64, 2)

    def forward(self, x, times):
        return self.second(SlowBackward.apply(self.first(x), times))


def merged(session):
    """Prints the samples that it gets; `params.slow` says what a sample takes on each rank. A rank
    dies once in step `params.dies`.
    """
    params = session.job.params
    rank = session._member.group.rank
    model, _ = session.attach(Net, lambda parameters: torch.optim.SGD(parameters, lr=0.3))
    for shard in session.shards(Numbers(), epochs=session.job.epochs):
        x, y, numbers = shard.batch
        print("used", json.dumps([shard.step, numbers[: shard.size].tolist()]))
        if rank == 0 and shard.step == params.get("dies") and is_first(params["mark"]):
            os.kill(os.getpid(), signal.SIGKILL)
        session.backward(F.cross_entropy(model(x, len(x) * params["slow"][rank]), y))


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
