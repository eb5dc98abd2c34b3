"""Tasks that change the model and what goes with it between two steps, where users do that."""

import os
import signal

import numpy as np
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
    """A buffer is halved after each step, and statistics are measured again after the loop."""
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


def _replace_layer(model):
    model[3] = nn.Linear(5, 3)


def _replace_parameter(model):
    model[3].weight = nn.Parameter(torch.ones_like(model[3].weight))


def _add_hook(model):
    model[2].register_forward_hook(lambda _module, _inputs, output: output * 2)


HOOKED = {
    "attributes": lambda model: (setattr(model[4], "p", 0.0), setattr(model[1], "momentum", 0.5)),
    "noise": lambda model: model[3].reset_parameters(),
    "replaced layer": _replace_layer,
    "replaced parameter": _replace_parameter,
    "added layer": lambda model: model.append(nn.Tanh()),
    "weight norm": lambda model: nn.utils.parametrizations.weight_norm(model[3]),
    "forward hook": _add_hook,
}


def in_callback(session):
    """Changes the model once, after the third step."""

    def with_dropout():
        return net().append(nn.Dropout(0.5))

    model, _ = session.attach(with_dropout, lambda p: torch.optim.SGD(p, lr=0.1))

    def change():
        if session.step == 3:
            HOOKED[session.job.params["what"]](model)

    session.on_commit(change)
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def scheduler_among_others(session):
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    first = session.register("first", lr_scheduler.ExponentialLR(optimizer, 0.9))
    others = {"plateau": lr_scheduler.ReduceLROnPlateau, "steps": lr_scheduler.StepLR}
    second = others[session.job.params["what"]](optimizer, *session.job.params["arguments"])
    session.on_commit(lambda: (first.step(), second.step(session.loss)))
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Schedules:
    """Schedulers within an object of the user's."""

    def __init__(self, optimizer):
        self.parts = [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.StepLR(optimizer, 2)]

    def state_dict(self):
        return {"parts": [each.state_dict() for each in self.parts]}

    def load_state_dict(self, state_dict):
        for each, state in zip(self.parts, state_dict["parts"], strict=True):
            each.load_state_dict(state)


def schedulers_in_an_object(session):
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    schedules = session.register("schedules", Schedules(optimizer))
    session.on_commit(lambda: [each.step() for each in schedules.parts])
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def scheduled(session):
    """A schedule of the learning rate, which is a tensor."""
    model, _ = session.attach(
        net,
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05)),
        schedule=lambda steps: lambda step: (1 + step) / steps,
    )
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def in_loop(session):
    """Writes to a tensor of the state once for each shard."""
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    average = session.register("average", torch.optim.swa_utils.AveragedModel(model))
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
        with torch.no_grad():
            match session.job.params["what"]:
                case "parameter":
                    model[0].weight.mul_(0.999)
                case "rebound parameter":
                    model[0].weight.data = model[0].weight * 0.999
                case "momentum" if session.step:
                    optimizer.state[model[3].bias]["momentum_buffer"].mul_(0.5)
                case "average":
                    average.update_parameters(model)


class Large:
    def state_dict(self):
        return {"average": torch.zeros(1 << 18)}

    def load_state_dict(self, state_dict):
        pass


def keeping_too_much(session):
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    session.register("statistics", Large())
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def after_the_loop(session):
    """Changes what it can after the loop over shards, where one worker dies."""
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    kept = session.register("average", torch.optim.swa_utils.AveragedModel(model, use_buffers=True))
    session.on_commit(lambda: kept.update_parameters(model))
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    trained = [each.clone() for each in (*model.state_dict().values(), *kept.state_dict().values())]
    with torch.no_grad():
        for tensor in (*model.state_dict().values(), *kept.state_dict().values()):
            tensor.mul_(2)
    session.state["ended"] = session.state.get("ended", 0) + 1
    assert session.state["ended"] == 1, "a worker has ended before"
    found = session.evaluate(DATA, measured)
    mark = session.job.params.get("mark")
    if mark and session._member.group.rank == 1 and is_first(mark):
        os.kill(os.getpid(), signal.SIGKILL)
    assert found == session.evaluate(DATA, measured)
    now = (*model.state_dict().values(), *kept.state_dict().values())
    assert all(torch.equal(each, old * 2) for each, old in zip(now, trained, strict=True))


def before_the_loop(session):
    """Sets at its start, once the run's state has come, what it changes in `on_commit`."""
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=1.0))
    assert session.step >= 0
    optimizer.param_groups[0]["lr"] = 0.1
    session.state["scale"] = 1.0

    def change():
        optimizer.param_groups[0]["lr"] *= 0.9
        session.state["scale"] *= 1.1

    session.on_commit(change)
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y) * session.state["scale"])


def new_momentum(session):
    """Gives the optimizer other tensors after its fifth step."""
    model, optimizer = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def change():
        if session.step == 5:
            for state in optimizer.state.values():
                state["momentum_buffer"] = torch.ones_like(state["momentum_buffer"])

    session.on_commit(change)
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def mode_of_a_kept_module(session):
    def with_dropout():
        layers = [each for each in net() if not isinstance(each, nn.BatchNorm1d)]
        return nn.Sequential(*layers, nn.Dropout(0.5))

    model, _ = session.attach(with_dropout, lambda p: torch.optim.SGD(p, lr=0.1))
    teacher = session.register("teacher", torch.optim.swa_utils.AveragedModel(model))

    def change():
        teacher.update_parameters(model)
        if session.step == 3:
            teacher.eval()

    session.on_commit(change)
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        with torch.no_grad():
            target = teacher(shard.x)
        session.backward(F.mse_loss(model(shard.x), target) + F.cross_entropy(target, shard.y))


def overwriting(session):
    """Copies the model to a target every few steps, or masks weights after each; a bit flips."""
    params = session.job.params
    model, _ = session.attach(net, lambda p: torch.optim.SGD(p, lr=0.1))
    target = session.register("target", net()).eval()
    target.load_state_dict(model.state_dict())
    mask = (torch.arange(model[0].weight.numel()) % 2).view_as(model[0].weight)

    def change():
        if params["what"] == "target" and session.step % 3 == 0:
            target.load_state_dict(model.state_dict())
        if params["what"] == "mask":
            with torch.no_grad():
                model[0].weight.mul_(mask)

    session.on_commit(change)
    name = {"target": "kept.target.3.weight", "mask": "model.0.weight"}[params["what"]]
    for shard in session.shards(DATA, epochs=3):
        die_once(session, shard)
        if shard.step == 7 and session._member.group.rank == 1 and is_first(params["mark"]):
            replica = session._member.joined.replica
            (entry,) = [each for each in replica.layout.entries if each.name == name]
            replica.flat[entry.offset + 3] ^= 0x40
        loss = F.cross_entropy(model(shard.x), shard.y)
        session.backward(loss + F.mse_loss(model(shard.x), target(shard.x).detach()))


class Damped(torch.optim.SGD):
    """Divides its rate by a mean of norms that it keeps in an attribute."""

    def __init__(self, parameters, what):
        super().__init__(parameters, lr=0.1)
        self.what = what
        self.norms, self.nested = [1.0], {"mean": (1.0, 2)}
        self.mean, self.scalar = torch.ones(()), np.float32(1)
        self.by_parameter = {}
        self.base = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        norm = sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None)
        match self.what:
            case "list":
                self.norms.append(norm)
                factor = sum(self.norms)
            case "dictionary":
                self.nested["mean"] = (self.nested["mean"][0] + norm, 2)
                factor = self.nested["mean"][0]
            case "tensor":
                self.mean.add_(norm)
                factor = float(self.mean)
            case "scalar":
                self.scalar += np.float32(norm)
                factor = float(self.scalar)
            case "by_parameter":
                for p in parameters:
                    self.by_parameter[p] = self.by_parameter.get(p, 0) + norm
                factor = self.by_parameter[parameters[0]]
            case "base":
                self.base.step()
                factor = 1.0
        self.param_groups[0]["lr"] = 0.1 / (1 + factor)
        super().step()


def optimizer_attributes(session):
    what = session.job.params["what"]
    model, _ = session.attach(net, lambda p: Damped(p, what))
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Attributes(nn.Module):
    """A model that computes with attributes of many kinds."""

    def __init__(self):
        super().__init__()
        self.body, self.activation = net(), torch.tanh
        self.scales, self.by_name = [1.0], {"scale": 1.0}
        self.tensor, self.replaced = torch.ones(()), torch.ones(())
        self._private = 1.0

    def forward(self, x):
        scale = self.scales[-1] * self.by_name["scale"] * self.tensor * self.replaced
        return self.activation(self.body(x)) * scale * self._private


ATTRIBUTES = {
    "list": lambda model: model.scales.append(model.scales[-1] + 0.1),
    "dictionary": lambda model: model.by_name.update(scale=model.by_name["scale"] + 0.1),
    "tensor": lambda model: model.tensor.add_(0.1),
    "replaced tensor": lambda model: setattr(model, "replaced", model.replaced + 0.1),
    "private": lambda model: setattr(model, "_private", model._private + 0.1),
    "function": lambda model: setattr(model, "activation", torch.sigmoid),
}


def module_attributes(session):
    model, _ = session.attach(Attributes, lambda p: torch.optim.SGD(p, lr=0.1))

    def change():
        if session.step <= 3:
            ATTRIBUTES[session.job.params["what"]](model)

    session.on_commit(change)
    for shard in session.shards(DATA, epochs=2):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))
