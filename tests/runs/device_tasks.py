"""A task whose gradient stays on the device, and is no number in one step."""

import math

import torch.nn.functional as F
from sample_tasks import Points
from torch import nn, optim

from holdfast.worker.membership.worker_state import WorkerState

BAD_STEP = 4


def main(session):
    """Trains for seven steps. A worker on a CPU that acts as one on a GPU settles a step later: its
    state would be lost with it.
    """
    params = session.job.params
    if params["acts_as_gpu"]:
        WorkerState.outlives_worker = False
    model, _ = session.attach(
        lambda: nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)),
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    )
    seen = session.state.setdefault("losses", [])
    if params["reads_loss"]:
        session.on_commit(lambda: seen.append(session.loss))
    for shard in session.shards(Points(), steps=7):
        factor = math.nan if shard.step == BAD_STEP else 1.0
        session.backward(factor * F.cross_entropy(model(shard.x), shard.y))
        session.log(factor=shard.x.sum())
