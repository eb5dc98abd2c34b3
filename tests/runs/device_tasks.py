"""A task whose gradient stays on the device, and is no number in one step."""

import math
import os
import signal

import torch.nn.functional as F
from sample_tasks import Points
from torch import nn, optim

from faults import is_first
from holdfast.arena.device.memory import MemfdMemory, MemfdPeer
from holdfast.job.train_job import TrainJob

BAD_STEP = 4


def break_maps(how):
    """Have this worker fail to map the memory of others, or read something else there."""
    read = MemfdPeer.read

    def fail(*_):
        raise OSError("no peer access")

    def misread(self, start, target):
        read(self, start, target)
        if len(target):
            target[-1] ^= 1

    if how == "open":
        MemfdPeer.__init__ = fail
    else:
        MemfdPeer.read = misread


def fill_up(*_):
    raise OSError("out of memory")


def main(session):
    """Trains for seven steps. The worker kills itself once when it begins step `params.dies_at`."""
    params = session.job.params
    if params.get("cannot_map") == session._member.group.rank:
        break_maps(params["how"])
    if params.get("acts_as_gpu"):
        TrainJob.exchange_on = lambda *_, gpu: "mapped"
    if params.get("fills_device") and not is_first(params["mark"] + "-full"):
        MemfdMemory.__init__ = fill_up  # for the replacement
    model, _ = session.attach(
        lambda: nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)),
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    )
    seen = session.state.setdefault("losses", [])
    if params.get("reads_loss"):
        session.on_commit(lambda: seen.append(session.loss))
    for shard in session.shards(Points(), steps=7):
        if shard.step == params.get("dies_at") and is_first(params["mark"]):
            os.kill(os.getpid(), signal.SIGKILL)
        factor = math.nan if shard.step == BAD_STEP else 1.0
        session.backward(factor * F.cross_entropy(model(shard.x), shard.y))
        session.log(factor=shard.x.sum())
