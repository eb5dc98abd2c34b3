"""A task whose samples are rounded otherwise on another kind of processor."""

import math
import os

import torch
import torch.nn.functional as F


def samples():
    value = math.nextafter(0.5, 1) if os.environ.get("SAMPLES") == "larger" else 0.5
    return [(torch.tensor([value], dtype=torch.float64), torch.ones(1, dtype=torch.float64))] * 40


def main(session):
    """Trains on the samples, and evaluates on them."""
    model, _ = session.attach(
        lambda: torch.nn.Linear(1, 1).double(), lambda p: torch.optim.SGD(p, lr=0.1)
    )

    def loss(model, batch):
        return {"loss": F.mse_loss(model(batch[0]), batch[1])}

    session.evaluate_each_epoch(samples(), loss)
    for shard in session.shards(samples()):
        session.backward(F.mse_loss(model(shard.batch[0]), shard.batch[1]))
