"""A model that `sync: ddp` and plain DistributedDataParallel train alike.

The model, its initial weights and its inputs follow from constants, so that a script that knows
nothing of a job gets the same bits.
"""

import hashlib
import math
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from faults import is_first

STEPS = 6
CLIP_NORM = 0.5
WIDTH = 64
"""Of matrices that PowerSGD finds worth a compression."""


class Branches(nn.Module):
    """Two layers in a row, and a third that only some calls use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for each in self.parameters():
                each.copy_(torch.randn(each.shape, generator=generator) / 8)

    def forward(self, x, with_third):
        x = self.second(torch.tanh(self.first(x)))
        return self.third(torch.tanh(x)) if with_third else x


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def loss_of(model, step, rank, with_third):
    """The loss of a worker's part of a step."""
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return F.mse_loss(model(x, with_third), x.roll(1, 1))


def uses_third(uses, step, rank):
    """True if the loss of a step depends on the third layer: always, from time to time, or on one
    rank alone.
    """
    return {
        "always": True,
        "sometimes": step % 2 == 0,
        "later": step > 1,
        "first": step < 2,
        "alone": rank == 0,
    }[uses]


def halve(parameters):
    """Change gradients, as functions of user code do before an update."""
    for each in parameters:
        if each.grad is not None:
            each.grad.mul_(0.5)


def sha256(model):
    """A digest of the weights, by which two programs are compared."""
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    return hashlib.sha256(weights).hexdigest()


class Numbers:
    """Samples of which only the number counts: eight for each of two workers in a step."""

    fingerprint = "numbers"

    def __len__(self):
        return 16 * STEPS

    def batch(self, indices, generator):
        return (torch.as_tensor(indices),)


def main(session):
    """Trains `Branches`; the loss of one step may be infinite. Prints the limit of the process
    group, the bytes of a slot and of all that the run needs in shared memory, and the digest of the
    weights.
    """
    model, _ = session.attach(Branches, sgd)
    session.on_gradients(lambda: halve(model.parameters()))
    uses = session.job.params.get("uses", "always")
    infinite = session.job.params.get("infinite")
    for shard in session.shards(Numbers(), epochs=1):
        rank = session._member.group.rank
        loss = loss_of(model, shard.step, rank, uses_third(uses, shard.step, rank))
        session.backward(loss * math.inf if shard.step == infinite else loss)
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    print("limit", group.options._timeout.total_seconds())
    sections = session._member.models.sections
    print("slot", sections.slot_bytes)
    print("shared", sections.used_bytes(session.job.workers))
    print("weights", sha256(model.module))


class Hanging(torch.autograd.Function):
    """Passes on what it gets; its backward pass may do nothing for a minute before."""

    @staticmethod
    def forward(ctx, x, hangs):
        ctx.hangs = hangs
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.hangs:
            threading.Event().wait(60)
        return gradient, None


class Late(nn.Module):
    """Two layers; the gradient of the first may never come."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, WIDTH)
        self.second = nn.Linear(WIDTH, 1)

    def forward(self, x, hangs):
        return self.second(Hanging.apply(self.first(x), hangs))


def hanging(session):
    """Rank 1 hangs once in the backward pass of its third step."""
    model, _ = session.attach(Late, sgd)
    for shard in session.shards(Numbers(), epochs=1):
        is_odd = shard.step == 2 and session._member.group.rank == 1
        hangs = is_odd and is_first(session.job.params["mark"])
        session.backward(model(shard.x.float()[:, None] / 100, hangs).square().mean())


def sparse(session):
    """Trains an embedding whose gradient is sparse."""
    model, _ = session.attach(lambda: nn.Embedding(16 * STEPS, 4, sparse=True), sgd)
    for shard in session.shards(Numbers(), epochs=1):
        session.backward(model(shard.x).square().mean())
