"""Tasks that train in a loop of their own: `push` by `session.steps`, `pull` by `session.shards`.

What both do between two steps is the same: an average of the weights, a count of seen losses, and a
scheduler.
"""

import os
import signal
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import holdfast
from holdfast import Session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layers(x).relu())


def data():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(96, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))


def begin(session):
    model, optimizer = session.attach(Net, partial(torch.optim.AdamW, lr=0.02))
    average = session.register("average", torch.optim.swa_utils.AveragedModel(model))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    session.register("scheduler", scheduler)

    def compute(shard):
        session.backward(F.cross_entropy(model(shard.batch[0]), shard.batch[1]))

    def between():
        if session.step % 4 == 0:  # what was written becomes part of the weights
            average.update_parameters(model)
            with torch.no_grad():
                model.head.bias.mul_(0.5)
        scheduler.step()
        session.state["losses"] = session.state.get("losses", 0.0) + session.loss

    return compute, between


def pull(session: Session):
    compute, between = begin(session)
    session.on_commit(between)
    for shard in session.shards(data(), epochs=2):
        compute(shard)
    print("ended", session.step, session.state)


def push():
    """Kills itself in the middle of a pause, if `params.die_in` is its step, once."""
    session = holdfast.session()
    compute, between = begin(session)
    steps = session.steps(data(), epochs=2)
    params = session.job.params
    while steps.advance(compute):
        if session.step == params.get("die_in") and steps.is_main:
            mark = Path(params["mark"])
            if not mark.exists():
                mark.touch()
                if params.get("after"):
                    between()
                os.kill(os.getpid(), signal.SIGKILL)
        between()
        if session.step == params.get("end_after"):
            break
        with (Path(params["folder"]) / f"{session.step}").open("a") as file:
            file.write(f"{steps.newest['step']} {steps.newest['loss']}\n")
    steps.finish()
    print("ended", session.step, session.state)


def adopt():
    """Takes keys of the job from elsewhere, as from the arguments of a library."""
    session = holdfast.session()
    session.adopt(batch=24, epochs=2, shards=6)
    compute, between = begin(session)
    session.on_commit(between)
    for shard in session.shards(data()):
        compute(shard)
