"""Tasks that change the model and what goes with it between two steps, where users do that."""

import os
import signal

import torch
import torch.nn.functional as F
from state_tasks import DATA, die_once, measured, net
from torch import nn
from torch.optim import lr_scheduler

from faults import is_first


class KeepsGradients(torch.optim.SGD):
    """Keeps the gradient that it has applied, having written to it."""

    def step(self, closure=None):
        self.applied = []
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.state[parameter]["applied"] = parameter.grad.data.mul_(0.5)
                self.applied.append(parameter.grad.clone())
        super().step()


def keeping_gradients(session):
    model, optimizer = session.attach(net, lambda p: KeepsGradients(p, lr=0.1))

    def check():
        kept = [optimizer.state[p]["applied"] for p in model.parameters()]
        assert all(map(torch.equal, kept, optimizer.applied)), "other state than was applied"

    session.on_commit(check)
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return self.scale * self.body(x)


def annealing(session):
    """A buffer is halved after each step, and the statistics are measured again at the end."""
    made = []

    def scaled():
        made.append(Scaled())
        return made[0]

    model, _ = session.attach(scaled, lambda p: torch.optim.SGD(p, lr=0.1))

    def halve():
        made[0].scale.mul_(0.5)

    session.on_commit(halve)
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        assert float(made[0].scale) == 0.5**shard.step
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    loader = torch.utils.data.DataLoader(DATA, batch_size=40)
    torch.optim.swa_utils.update_bn(loader, model)
    found = session.evaluate(DATA, measured)
    assert found == session.evaluate(DATA, measured)


def replacing_weights(session):
    """Begins with other weights, also where a run continues."""
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    if session.step >= 0:
        nn.init.ones_(model[0].weight)
    for shard in session.shards(DATA, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def counting(session):
    """Counts its lives, and dies where it evaluates before the loop of the second."""
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    params = session.job.params

    def measure(model, batch):
        if session.step and session._member.group.rank == 1 and is_first(params["mark"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return measured(model, batch)

    session.state.setdefault("steps", 0)
    session.evaluate(DATA, measure)

    def count():
        session.state["steps"] += 1

    session.on_commit(count)
    for shard in session.shards(DATA, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    assert session.state["steps"] == session.step


def scheduler_after_joining(session):
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    assert session.step == 0
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    session.on_commit(scheduler.step)
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Large:
    def state_dict(self):
        return {"average": torch.zeros(1 << 18)}

    def load_state_dict(self, state_dict):
        pass


def keeping_too_much(session):
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    session.keep("statistics", Large())
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
