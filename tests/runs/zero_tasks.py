"""Tasks of a model whose rows are divided over the workers, with what that does not support."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from sample_tasks import Points
from torch import nn


class Scaled(nn.Module):
    """A layer with a parameter of a shape that a test chooses."""

    def __init__(self, *shape):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, x):
        return self.layer(x) * self.scale


def train_on(session, model=lambda: Scaled(1), optimizer=torch.optim.AdamW, shards=None):
    model, _ = session.attach(model, lambda p: optimizer(p, lr=0.01))
    for shard in session.shards(Points(), epochs=1):
        loss = F.cross_entropy(model(shard.x), shard.y)
        (shards or session.backward)(loss)


def adafactor(session):
    train_on(session, optimizer=torch.optim.Adafactor)


def scalar(session):
    train_on(session, model=Scaled)


def transposed(session):
    def model():
        built = Scaled(1)
        built.layer.weight = nn.Parameter(torch.randn(2, 2).t())
        return built

    train_on(session, model=model)


def hooked(session):
    def model():
        built = Scaled(1)
        built.scale.register_hook(lambda gradient: gradient * 2)
        return built

    train_on(session, model=model)


def backward_of_torch(session):
    train_on(session, shards=lambda loss: loss.backward())


def without_backward(session):
    train_on(session, shards=lambda loss: None)


def clipping(session):
    model, _ = session.attach(lambda: Scaled(1), lambda p: torch.optim.AdamW(p, lr=0.01))

    def clip():
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    session.on_commit(clip)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def exploding(session):
    train_on(session, shards=lambda loss: session.backward(loss * float("inf")))


class Skipping(nn.Module):
    """Blocks of which some are skipped at random, as for regularization."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 160)
        self.blocks = nn.ModuleList(nn.Linear(160, 160) for _ in range(3))
        self.last = nn.Linear(160, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            if torch.rand(()) < 0.6:
                x = block(x)
        return self.last(x)


def skipping(session):
    train_on(session, model=Skipping)


def writing(session):
    """Changes weights in the loop, where autograd does not see it."""
    model, _ = session.attach(lambda: Scaled(1), lambda p: torch.optim.AdamW(p, lr=0.01))
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
        for parameter in model.parameters():
            parameter.data.mul_(0.5)


def looking(session):
    """Calls the model for the loss, and with gradients around it for what is only looked at."""
    model, _ = session.attach(lambda: Scaled(1), lambda p: torch.optim.AdamW(p, lr=0.01))
    for shard in session.shards(Points(), epochs=1):
        seen = model(shard.x)
        session.backward(F.cross_entropy(model(shard.x), shard.y))
        session.log(moved=(model(shard.x) - seen).abs().mean())


def deep(width=1024):
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(18)]
    return nn.Sequential(nn.Linear(2, width), *layers, nn.Linear(width, 2))


def limited(session):
    """A model of 75 MB, whose state takes 225 MB; rank 1 has a control group of its own."""
    if session._member.group.rank == 1:
        Path(session.job.params["group"], "cgroup.procs").write_text(str(os.getpid()))
    model, _ = session.attach(deep, lambda p: torch.optim.AdamW(p, lr=1e-4))
    for shard in session.shards(Points(), steps=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
