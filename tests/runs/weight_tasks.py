"""Tasks whose weights are used elsewhere."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, X.argmax(1) % 3)


class Tied(nn.Module):
    """A tensor under two names, batch normalization, and a buffer that is not in its state dict."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu()) * self.scale


def averaged(session):
    """Train `Tied` and its average; once, remove the file `params.gone` and die."""
    model, _ = session.attach(Tied, lambda p: torch.optim.AdamW(p, lr=0.05))
    average = session.register("average", AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn()))
    session.on_commit(lambda: average.update_parameters(model))
    gone = Path(session.job.params.get("gone", "nowhere"))
    for shard in session.shards(DATA, epochs=session.job.epochs):
        if shard.step == 4:
            with suppress(FileNotFoundError):
                gone.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        session.backward(F.cross_entropy(model(shard.x)[:, :3], shard.y))


def one_cycle(session):
    model, _ = session.attach(
        Tied,
        lambda p: torch.optim.AdamW(p, lr=0.05),
        schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, 0.1, total_steps),
    )
    for x, y in session.shards(DATA):
        session.backward(F.cross_entropy(model(x)[:, :3], y))
