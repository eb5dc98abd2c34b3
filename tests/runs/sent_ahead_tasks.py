"""A task whose gradients are not final when autograd first has them, or come late."""

import torch
import torch.nn.functional as F
from faulty_tasks import measure
from sample_tasks import Points
from torch import nn
from torch.utils.checkpoint import checkpoint


class Fails(torch.autograd.Function):
    """Raises in the middle of a backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no gradient this time")


class Odd(nn.Module):
    """A model with layers that are recomputed twice, sparse gradients, and a layer that some shards
    do not use.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 64)
        self.table = nn.Embedding(90, 64, sparse=True)
        self.twice = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.sometimes = nn.Linear(64, 64)
        self.last = nn.Linear(64, 2)

    def forward(self, x, *, recomputes=False, fails=False, uses_all=True):
        y = self.first(x) + self.table((89 * x[:, 0]).long().clamp(0, 89))
        if fails:
            y = Fails.apply(y)
        for _ in range(2):
            y = checkpoint(self.twice, y, use_reentrant=True) if recomputes else self.twice(y)
        y = self.norm(y)
        return self.last(y + self.sometimes(y) if uses_all else y)


def main(session):
    model, _ = session.attach(Odd, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    for shard in session.shards(Points(), epochs=2):
        if shard.step % 4 == 1:
            try:
                session.backward(F.cross_entropy(model(shard.x, fails=True), shard.y))
            except RuntimeError:
                session.log(failed=1.0)
        else:
            session.log(failed=0.0)
        recomputes = shard.step % 3 == 1
        output = model(shard.x, recomputes=recomputes, uses_all=shard.step % 5 != 2)
        session.backward(F.cross_entropy(output, shard.y))
        if shard.step == 6:
            session.evaluate(Points(), measure)
