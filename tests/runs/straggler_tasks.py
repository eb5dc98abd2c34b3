"""A task on workers of which one is slow for a while."""

from pathlib import Path

import torch.nn.functional as F
from balance_tasks import lasting
from sample_tasks import Points, adamw
from torch import nn

SLOWDOWN = 12


class Many(Points):
    """So many points that each step has a whole batch."""

    def __len__(self):
        return 90 * 64


def net():
    """A model with buffers, which a probe must leave as they are."""
    return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 2))


def main(session):
    """Trains on points. Rank `params.slow` is slow from step `params.slow_from` on, up to step
    `params.cured_at`. On standby it hears from the others by a file that it is cured.
    """
    params = session.job.params
    cured = Path(params["cured"])
    model, _ = session.attach(net, adamw)

    def cure():
        if session.step == params["cured_at"]:
            cured.touch()

    session.on_commit(cure)
    for shard in session.shards(Many(), steps=params["steps"]):
        is_due = session.step >= params["slow_from"] and not cured.exists()
        is_slow = is_due and session._member.group.rank == params["slow"]
        with lasting(params["lasts"] * (SLOWDOWN if is_slow else 1)):
            session.backward(F.cross_entropy(model(shard.x), shard.y))
