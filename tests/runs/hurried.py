"""A task for runs on hosts that share no disk: its steps are slow until the test is in a hurry."""


def task(pause_s):
    """The source of a task with 300 steps, each shard of which takes so long until the file of
    `params.hurry` exists.
    """
    return f"""
import time
from pathlib import Path

import torch

def main(session):
    hurry = Path(session.job.params["hurry"])
    torch.manual_seed(1)
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    model, _ = session.attach(lambda: torch.nn.Linear(4, 1), adamw)
    data = [(torch.full((4,), i / 100), torch.tensor([i / 50])) for i in range(96)]
    for shard in session.shards(data, steps=300):
        if not hurry.exists():
            time.sleep({pause_s})
        inputs, targets = shard.batch
        session.backward(torch.nn.functional.mse_loss(model(inputs), targets))
"""
