"""A task on workers of which some have little memory."""

import torch
import torch.nn.functional as F
from sample_tasks import Points, adamw
from torch import nn

ALL_MEMORY = 10**15


def net():
    """A model with buffers, which a shard that was not completed must leave as they are."""
    return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 2))


def main(session):
    """Trains on points. `params.most` has the most shards of a step for which a rank has memory,
    from step `params.since` on.
    """
    params = session.job.params
    most = dict(params["most"]).get(session._member.group.rank, session.job.shards)
    model, _ = session.attach(net, adamw)
    step = computed = 0
    for shard in session.shards(Points(), steps=params["steps"]):
        computed = computed + 1 if shard.step == step else 1
        step = shard.step
        loss = F.cross_entropy(model(shard.x), shard.y)
        if step >= params["since"] and computed > most:
            torch.empty(ALL_MEMORY, device=shard.x.device)
        session.backward(loss)
