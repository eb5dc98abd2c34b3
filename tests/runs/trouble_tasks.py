"""A task in which rank 1 gets into trouble in mid-run, of a kind that the test names."""

import os
import time
from pathlib import Path

import torch.nn.functional as F
from balance_tasks import lasting
from sample_tasks import Points, adamw
from torch import nn

BEGINS_AT = 25
"""Steps before the trouble."""


class SlowPoints(Points):
    """Points that take long to read once `delay_s` is set."""

    delay_s = 0.0

    def __getitem__(self, index):
        time.sleep(self.delay_s)
        return super().__getitem__(index)


def main(session):
    """Trains on points, 3 ms of the processor for each shard, until 15 steps after the trouble."""
    params = session.job.params
    data, is_troubled = SlowPoints(), session._member.group.rank == 1
    model, _ = session.attach(lambda: nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 2)), adamw)
    data.delay_s = params.get("read_s", 0.0)
    for shard in session.shards(data, steps=BEGINS_AT + 15):
        has_begun = is_troubled and shard.step >= BEGINS_AT
        if has_begun and params["trouble"] == "reader":
            data.delay_s = 0.05
        if has_begun and params["trouble"] == "quota":
            Path(params["group"], "cgroup.procs").write_text(str(os.getpid()))
        with lasting(20 if has_begun and params["trouble"] == "work" else 1):
            loss = F.cross_entropy(model(shard.x), shard.y)
            session.backward(loss)
        if has_begun and params["trouble"] == "blocked":
            time.sleep(0.15)
