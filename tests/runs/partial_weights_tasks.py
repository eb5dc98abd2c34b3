"""Tasks that need whole weights outside of the model."""

import os

import torch
import torch.nn.functional as F
from sample_tasks import Points
from torch import nn


def train_on(session, loss, on_commit=lambda model: None):
    build = lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))  # noqa: E731
    model, _ = session.attach(build, lambda p: torch.optim.AdamW(p, lr=0.01))
    session.on_commit(lambda: on_commit(model))
    for shard in session.shards(Points(), epochs=1):
        session.backward(loss(model, shard))


def by_layers(session):
    """Calls layers of the model in its place."""
    train_on(session, lambda model, shard: F.cross_entropy(model[1:](model[0](shard.x)), shard.y))


def penalizing(session):
    """Adds a penalty on weights to the loss."""

    def loss(model, shard):
        penalty = sum(each.pow(2).sum() for each in model.parameters())
        return F.cross_entropy(model(shard.x), shard.y) + penalty

    train_on(session, loss)


def saving(session):
    """Saves the model in a file of its own."""
    save = session.main_only(lambda model: torch.save(model.state_dict(), os.devnull))
    train_on(session, lambda model, shard: F.cross_entropy(model(shard.x), shard.y), save)
