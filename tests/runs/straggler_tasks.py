"""A task on workers of which one is slow for a while."""

from pathlib import Path

import torch.nn.functional as F
from balance_tasks import lasting
from sample_tasks import Points, adamw
from torch import nn

SLOWDOWN = 12


def main(session):
    """Trains on points. Rank `params.slow` is slow until step `params.cured_at`: the others, which
    do not know what it is at, tell it by a file.
    """
    params = session.job.params
    cured = Path(params["cured"])
    model, _ = session.attach(
        lambda: nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Linear(64, 2)), adamw
    )

    def cure():
        if session.step == params["cured_at"]:
            cured.touch()

    session.on_commit(cure)
    for shard in session.shards(Points(), epochs=params["epochs"]):
        is_slow = session._member.group.rank == params["slow"] and not cured.exists()
        with lasting(SLOWDOWN if is_slow else 1):
            session.backward(F.cross_entropy(model(shard.x), shard.y))
