"""Tasks that tests run in real workers, as a user would write them."""

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Points(torch.utils.data.Dataset):
    """A map-style data set whose samples are noisy, from the global generator."""

    def __len__(self):
        return 90

    def __getitem__(self, index):
        x = torch.tensor([index / 90, 1.0 - index / 90]) + 0.01 * torch.randn(2)
        return x, int(index >= 45)


class Augmented(Points):
    """Points moved by all three global generators, by way of a sum that takes long enough for torch
    to share it out among threads.

    Args:
        pids: A directory in which every loader process that reads leaves its number.
        trouble: What sample 50 does in a loader process: nothing, or `raise`, `die` or `hang`.
    """

    def __init__(self, pids, trouble):
        self.pids, self.trouble, self.parent = Path(pids), trouble, os.getpid()

    def __getitem__(self, index):
        in_loader = os.getpid() != self.parent
        if in_loader:
            (self.pids / str(os.getpid())).touch()
        trouble = self.trouble if in_loader and index == 50 else None
        if trouble == "raise":
            raise ValueError("sample 50 is odd")
        if trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "hang":
            (self.pids / "hanging").touch()
            threading.Event().wait(60)
        x, y = super().__getitem__(index)
        noise = torch.randn(50_000).mean() + float(np.random.rand()) + random.random()
        x = x + 0.01 * noise
        return x, y


def net(width=8):
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.05)


def own_loop(session):
    model, _ = session.attach(net, adamw)

    def count():
        session.state["seen"] = session.state.get("seen", 0) + 1

    session.on_commit(count)
    for shard in session.shards(Points(), epochs=3):
        logits = model(shard.x)
        session.log(accuracy=(logits.argmax(1) == shard.y).float().mean())
        session.backward(F.cross_entropy(logits, shard.y))
    session.evaluate(Points(), lambda model, batch: {
        "points_right": float((model(batch[0]).argmax(1) == batch[1]).double().mean())
    })  # fmt: skip


class Partly(nn.Module):
    """A model with a parameter that nobody uses, a tied one, and odd buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.full((3,), 7.0))
        self.sometimes = nn.Parameter(torch.zeros(2))
        self.register_buffer("constant", torch.tensor([0.1, 0.7, 1e-8]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        y = self.second(self.first(x))
        return y + self.sometimes if float(x[0, 0]) > 0.5 else y


def augmented(session):
    """Learns from `Augmented`, with `params` saying how and when to die."""
    params = session.job.params
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Augmented(params["pids"], params.get("trouble")), epochs=2):
        if shard.step == params.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def imported(session):
    assert "transformers" in sys.modules


def growing(session):
    """A loop whose data grow from one life of the run to the next."""
    model, _ = session.attach(net, adamw)
    size = int(Path(session.job.params["size"]).read_text())
    points = torch.utils.data.Subset(Points(), range(size))
    for shard in session.shards(points, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def not_numbers(session):
    """Keeps an infinity, and evaluates to NaN."""
    model, _ = session.attach(net, adamw)
    session.evaluate_each_epoch(Points(), lambda model, batch: {"odd": float("nan")})
    best = session.state.setdefault("best", float("inf"))
    assert best == float("inf")
    for shard in session.shards(Points(), epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def frozen(session):
    """A model whose batch normalisation is kept in evaluation mode."""

    def half_frozen():
        model = net()
        model[1].eval()
        return model

    model, _ = session.attach(half_frozen, adamw)
    session.evaluate_each_epoch(Points(), lambda model, batch: {"size": float(len(batch[0]))})
    for shard in session.shards(Points(), epochs=2):
        assert not model[1].training
        assert model.training
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    assert model[1].num_batches_tracked == 0


def odd_model(session):
    model, optimizer = session.attach(Partly, adamw)
    for shard in session.shards(Points(), epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    unused = model.unused
    assert unused.grad is None
    assert unused not in optimizer.state
    assert torch.equal(unused, torch.full((3,), 7.0))
    assert torch.equal(model.constant, torch.tensor([0.1, 0.7, 1e-8]))
    assert model.first.weight is model.second.weight
    assert model.calls == session.step


def weighted(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        loss = F.cross_entropy(model(shard.x), shard.y)
        session.backward(loss, weight=float(shard.y.sum()) + 0.5)


def skipping(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=2):
        if float(shard.x[0, 0]) < 0.3:
            continue
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def nesterov(session):
    """With an optimizer that writes to the gradients that it is given."""
    model, _ = session.attach(
        net, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    )
    for shard in session.shards(Points(), epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def leaving(session):
    """Leaves the loop inside a step, with statistics that the shard has moved already."""
    model, _ = session.attach(
        lambda: nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    )
    for shard in session.shards(Points(), epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
        if shard.step == session.job.params["leave"]:
            break


def huge(session):
    """Gradients as long as `params` say are clipped to length one, not to nothing."""
    model, _ = session.attach(lambda: nn.Linear(2, 2), lambda p: torch.optim.SGD(p, lr=1.0))
    before = model.weight.clone()
    for shard in session.shards(Points(), epochs=1):
        session.backward(session.job.params["factor"] * F.cross_entropy(model(shard.x), shard.y))
    assert model.weight.isfinite().all()
    assert not torch.equal(model.weight, before)


def drawing_from_the_clock(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        noise = torch.randn(shard.x.shape, generator=torch.Generator().manual_seed(time.time_ns()))
        session.backward(F.cross_entropy(model(shard.x + noise), shard.y))


def counting_workers(session):
    """Scales its loss by the number of workers."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=2):
        loss = F.cross_entropy(model(shard.x), shard.y)
        session.backward(loss * session.job.workers)


def changed_by_a_replacement(session):
    """Always the same as long as nobody is lost."""
    model, _ = session.attach(net, adamw)
    factor = 2 if session.step else 1
    for shard in session.shards(Points(), epochs=3):
        session.backward(factor * F.cross_entropy(model(shard.x), shard.y))


def parent_of_a_child(session):
    """Has a process of its own, and tells it to end."""
    child = multiprocessing.get_context("fork").Process(target=threading.Event().wait, args=(600,))
    child.start()
    child.terminate()
    child.join(60)
    assert child.exitcode == -signal.SIGTERM
    own_loop(session)


def eternal(session):
    """Trains until it is stopped."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=100_000):
        try:
            session.backward(F.cross_entropy(model(shard.x), shard.y))
        except Exception as error:
            raise AssertionError("a stop must not look like an error") from error


class Values:
    """Numbers that are given."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        value = self.values[index]
        return torch.tensor([value / 90, 1.0 - value / 90]), value % 2


class Unsteady(Values):
    """Numbers with noise that no seed decides."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + int.from_bytes(os.urandom(4)) / 2**40, y


def from_file(session):
    train_on(session, Values(json.loads(Path(session.job.params["values"]).read_text())))


def never_the_same(session):
    train_on(session, Unsteady([*range(20)]))


def train_on(session, dataset):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(dataset, epochs=session.job.epochs):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
