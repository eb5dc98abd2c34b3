"""Tasks that keep state in PyTorch's own places, as users do, and tasks that break the rules."""

import os
import random
import signal
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

from faults import is_first, wrap

_x = torch.randn(120, 7, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(_x, _x[:, :3].argmax(1))


def net():
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Counting(torch.optim.SGD):
    """Keeps its step count in its parameter groups, and another one as an attribute."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.5)
        self.calls = 0

    def step(self, closure=None):
        self.calls += 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] /= group["k"] + self.calls
        super().step()
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


class ClippingLate(torch.optim.SGD):
    """Writes to its gradients, but not in its first steps."""

    def step(self, closure=None):
        state = self.param_groups[0]
        state["seen"] = state.get("seen", 0) + 1
        if state["seen"] > 3:
            for group in self.param_groups:
                for parameter in (p for p in group["params"] if p.grad is not None):
                    parameter.grad.data.clamp_(-1e-3, 1e-3)  # past autograd's version counter
        super().step()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05)),
    "groups": lambda p: torch.optim.AdamW([{"params": [each]} for each in p], lr=0.05),
    "counting": Counting,
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "clipping": lambda p: ClippingLate(p, lr=0.5),
}
SCHEDULERS = {
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5]),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
    "cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=50),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


def measured(model, batch):
    x, y = batch
    return {"right": float((model(x).argmax(1) == y).double().mean())}


def keeping(session):
    """Trains with an optimizer, a scheduler and an average, and counts its steps."""
    params = session.job.params
    model, optimizer = session.attach(net, OPTIMIZERS[params.get("optimizer", "sgd")])
    average = session.register(
        "average", torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    )
    scheduler = SCHEDULERS[params.get("scheduler", "exponential")](optimizer)
    session.register("scheduler", scheduler)
    session.state.setdefault("steps", [])

    def after_commit():
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(session.loss)
        else:
            scheduler.step()
        average.update_parameters(model)
        session.state["steps"].append(session.step)
        if session.step == 4:
            model[0].bias.requires_grad_(False)
            model[1].eval()

    session.on_commit(after_commit)
    for shard in session.shards(DATA, epochs=3):
        die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    assert session.state["steps"] == list(range(1, session.step + 1))
    session.evaluate(DATA, lambda _, batch: measured(average, batch))


def die_once(session, shard):
    for step, rank, mark in session.job.params.get("deaths", []):
        here = shard.step == step and session._member.group.rank == rank
        if here and is_first(mark):
            os.kill(os.getpid(), signal.SIGKILL)


def _trained(session, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), model=net):
    return session.attach(model, optimizer)


def scheduler_not_kept(session):
    model, optimizer = _trained(session)
    session.on_commit(lr_scheduler.ExponentialLR(optimizer, 0.9).step)
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def state_in_loop(session):
    model, _ = _trained(session)
    for shard in session.shards(DATA, epochs=1):
        session.state["seen"] = session.state.get("seen", 0) + 1
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def rate_in_loop(session):
    model, optimizer = _trained(session)
    for shard in session.shards(DATA, epochs=1):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + shard.step)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def rate_by_rank(session):
    model, optimizer = _trained(session)

    def after_commit():
        optimizer.param_groups[0]["lr"] = 0.1 + session._member.group.rank

    session.on_commit(after_commit)
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def _frozen():
    model = net()
    model[0].requires_grad_(False)
    return model


def unfreezing(session):
    model, optimizer = _trained(session, model=_frozen)
    for shard in session.shards(DATA, epochs=2):
        if shard.step == 3 and not model[0].weight.requires_grad:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters())})
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 3)
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.training:
            now = x.mean(0)
            self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        return self.layer(x - self.mean)


def lazy_buffer(session):
    model, _ = _trained(session, model=Lazy)
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def kept_late(session):
    model, _ = _trained(session)
    for shard in session.shards(DATA, epochs=1):
        session.register("average", torch.optim.swa_utils.AveragedModel(model))
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def kept_function(session):
    _trained(session)
    session.register("function", print)
    session.evaluate(DATA, measured)
    for shard in session.shards(DATA, epochs=1):
        session.backward(shard.x.sum())


def callback_late(session):
    model, _ = _trained(session)
    for shard in session.shards(DATA, epochs=1):
        session.on_commit(print)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def evaluating_in_callback(session):
    model, _ = _trained(session)
    session.on_commit(lambda: session.evaluate(DATA, measured))
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def altered(session):
    """One worker's weight is altered once, by code that runs in the loop."""
    model, _ = _trained(session, lambda p: torch.optim.AdamW(p, lr=1e-2))
    for shard in session.shards(DATA, epochs=6):
        rank = session._member.group.rank
        if shard.step == 5 and rank == 1 and is_first(session.job.params["mark"]):
            getattr(model, "module", model)[3].weight.data[0, 0] += 1.0
        if shard.step > 5:
            die_once(session, shard)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def flipping_at_checkpoint(session):
    """A bit of rank 1 flips just before it stages the second checkpoint, or after; while workers
    find out which one differs, one dies.
    """
    params = session.job.params

    def flip(arguments):
        (saver, _) = arguments
        if saver._group.rank == 1 and session.step > 4 and is_first(params["mark"]):
            saver._replica.flat[-1] ^= 1

    def die(arguments):
        (comparison, *_) = arguments
        if comparison._group.rank == params["dies"] and is_first(params["mark"] + ".death"):
            os.kill(os.getpid(), signal.SIGKILL)

    wrap("holdfast.worker.checkpoints.saver:CheckpointSaver._staged", params["when"], flip)
    if "dies" in params:
        wrap(
            "holdfast.worker.checks.replica_checker:ReplicaChecker._first_difference", "before", die
        )
    model, _ = _trained(session, lambda p: torch.optim.AdamW(p, lr=1e-3))
    for shard in session.shards(DATA, epochs=6):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def wrong_bits(session):
    """In the first generation, a bit of every tenth gradient of one rank is wrong."""
    params, member = session.job.params, session._member
    count = 0

    def flip(arguments):
        nonlocal count
        if member.group.rank != params["rank"] or member._arena.newest_generation > 1:
            return
        count += 1
        if (count + params.get("phase", 0)) % 10 == 0:
            arguments[0]._parameters[0].grad.view(torch.int32)[0, 0] ^= 1

    wrap("holdfast.worker.step.tree:TreeStepper._collect", "before", flip)
    model, _ = _trained(session, lambda p: torch.optim.AdamW(p, lr=1e-3))
    for shard in session.shards(DATA, epochs=params.get("epochs", 40)):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def own_chance(session):
    """Its result depends on the worker that runs it."""
    chance = random.Random(os.getpid())
    model, _ = _trained(session)
    for shard in session.shards(DATA, epochs=40):
        noise = 1e-3 * chance.random()
        session.backward(F.cross_entropy(model(shard.x + noise), shard.y))


def hashing(session):
    """Tells how this interpreter hashes strings."""
    model, _ = _trained(session)
    for shard in session.shards(DATA, epochs=1):
        session.log(hash=float(hash("holdfast") % 1000))
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class _Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(7, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 17), nn.BatchNorm1d(17)
        )
        self.head = nn.Linear(17, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += len(x)
        return self.head(torch.tanh(self.body(x)))


def flipping(session):
    """At a random moment a bit flips in the replica of one rank, once."""
    params = session.job.params
    chance = random.Random(params.get("seed"))
    model, _ = session.attach(_Deep, lambda p: torch.optim.AdamW(p, lr=1e-3))
    member, after_s = session._member, chance.uniform(0, params.get("within_s", 0))

    def flip():
        threading.Event().wait(after_s)
        if not is_first(params["mark"]):
            return
        replica = member.joined.replica
        kinds = ("model.body.1.running", "model.", "optimizer.")
        kind = kinds[params["seed"] % len(kinds)]
        present = [e for e in replica.layout.entries if e.size_bytes]
        entry = chance.choice([e for e in present if e.name.startswith(kind)])
        replica.flat[entry.offset + chance.randrange(entry.size_bytes)] ^= 1 << chance.randrange(8)
        Path(params["mark"]).write_text(f"{entry.name} {session.step}")

    thread = threading.Thread(target=flip, daemon=True)
    for shard in session.shards(DATA, epochs=params["epochs"]):
        here = shard.step == 10 and member.group.rank == params.get("rank")
        if here and not thread.ident:
            thread.start()
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Lengths:
    """Batches of twelve shapes."""

    fingerprint = "lengths"

    def __len__(self):
        return 120

    def batch(self, indices, generator):
        generator = torch.Generator().manual_seed(int(indices[0]))
        x = torch.randn(len(indices), 4 + int(indices[0]) % 12, 16, generator=generator)
        return x, torch.randint(3, (len(indices),), generator=generator)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 3)

    def forward(self, x):
        hidden = F.gelu(self.norm(torch.tanh(self.first(x))))
        return self.last(hidden.softmax(-1).mean(1))


def many_shapes(session):
    model, _ = session.attach(Pooled, lambda p: torch.optim.AdamW(p, lr=1e-2))
    for shard in session.shards(Lengths(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
