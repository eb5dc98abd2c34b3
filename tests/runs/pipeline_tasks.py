"""Loops of user code whose models are divided over the stages of a pipeline."""

import random

import torch
import torch.nn.functional as F
from sample_tasks import Points, adamw
from torch import nn


class Split(nn.Module):
    """One tensor to two, of which the second needs no gradient and is a view with other strides."""

    def forward(self, x):
        return x * 2, x.detach().t()


class Joined(nn.Module):
    """Two tensors to one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, pair):
        x, other = pair
        return self.inner(x) + other.t().relu()


class Odd(nn.Module):
    """A model with what a cut may meet: a function as a part, a parameter of its own, weights that
    three parts share, layers that write to what they get, and one that is not trained.
    """

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(8))
        self.layers = nn.Sequential(
            nn.Linear(2, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Dropout(0.2)
        )
        self.split = Split()
        self.joined = Joined()
        self.again = nn.Linear(8, 8)
        self.again.weight = self.joined.inner.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def _moved(self, x):
        return F.dropout(F.linear(x.relu_(), self.again.weight) + self.shift, 0.1, self.training)

    def pipeline_parts(self):
        return [
            *self.layers,
            self.split,
            self.joined,
            (self._moved, [self.again, self.shift]),
            nn.ReLU(inplace=True),
            self.again,
            self.frozen,
            self.head,
        ]

    def forward(self, x):
        for part in self.pipeline_parts():
            x = part[0](x) if isinstance(part, tuple) else part(x)
        return x


def odd(session):
    """Losses of unequal weight, shards that are left out, values of the loop that depend on chance,
    and weights that a hook changes.
    """
    model, _ = session.attach(Odd, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def shrink():
        with torch.no_grad():
            for each in model.parameters():
                if not each.is_meta:
                    each.clamp_(-2, 2)

    session.on_commit(shrink)
    for number, shard in enumerate(session.shards(Points(), epochs=2)):
        if number % 7 == 6:
            continue
        logits = model(shard.x + 0.01 * torch.randn(shard.x.shape))
        logits[0] = 0
        session.log(right=(logits.argmax(1) == shard.y).float().mean())
        session.backward(F.cross_entropy(logits, shard.y), weight=number % 3)
    session.evaluate(Points(), lambda model, batch: {
        "right": float((model(batch[0]).argmax(1) == batch[1]).double().mean())
    })  # fmt: skip


class Twice(nn.Sequential):
    """A model without chance, which is called three times for a shard."""

    def __init__(self):
        super().__init__(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def twice(session):
    model, _ = session.attach(Twice, adamw)
    for shard in session.shards(Points(), epochs=1):
        with torch.no_grad():
            aim = model(shard.x)
        logits = model(shard.x) + model(shard.x.flip(1)).tanh() + 0.1 * aim
        session.backward(F.cross_entropy(logits, shard.y))


class Whole(nn.Module):
    """A model that does not say what its parts are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


class Lacking(Whole):
    """A model whose parts are not all of it."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(2, 2)

    def pipeline_parts(self):
        return [self.layer, nn.Tanh()]


class Shared(nn.Sequential):
    """A model with statistics that two of its parts change."""

    def __init__(self):
        norm = nn.BatchNorm1d(2)
        super().__init__(norm, nn.Linear(2, 2), norm)


class Dropping(nn.Sequential):
    """A model with chance."""

    def __init__(self):
        super().__init__(nn.Linear(2, 2), nn.Linear(2, 2), nn.Dropout(0.5))


class Drawing(nn.Module):
    """A layer with chance that is not torch's."""

    def forward(self, x):
        return x * random.random()


REFUSED = {
    "whole": Whole,
    "short": lambda: nn.Sequential(nn.Linear(2, 2)),
    "lacking": Lacking,
    "shared": Shared,
    "drawing": lambda: nn.Sequential(nn.Linear(2, 2), Drawing()),
    "nested": lambda: nn.Sequential(nn.LSTM(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)),
}


def refused(session):
    """Trains a model that cannot be divided."""
    model, _ = session.attach(REFUSED[session.job.params["model"]], adamw)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def called_twice(session):
    model, _ = session.attach(Dropping, adamw)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x) + model(shard.x), shard.y))


def weighed_by_output(session):
    model, _ = session.attach(Twice, adamw)
    for shard in session.shards(Points(), epochs=1):
        logits = model(shard.x)
        weight = 1 + float(logits.detach().abs().sum())
        session.backward(F.cross_entropy(logits, shard.y), weight=weight)


class Clipping(torch.optim.SGD):
    """Clips the gradient by its own norm."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 1.0)
        return super().step(closure)


def clipping(session):
    model, _ = session.attach(Twice, lambda p: Clipping(p, lr=0.1))
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
