"""Tasks that attach models in other ways than one model with all of its parameters."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import TensorDataset

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, X.argmax(1) % 3)
IMAGES = TensorDataset(
    torch.randn(24, 2, 3, 3, generator=torch.Generator().manual_seed(2)), torch.arange(24) % 3
)

BUILT_AT_IMPORT = nn.Linear(6, 3)
DRAWN_AT_IMPORT = [float(torch.rand(())), float(np.random.rand()), random.random()]


def killed_once(session, step):
    """Have one worker die once in a step, if `params.mark` is there."""
    if step == session.job.params.get("at"):
        with suppress(FileNotFoundError):
            Path(session.job.params["mark"]).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def network():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    return model


def groups(model):
    parts = [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[1:].parameters()}]
    return torch.optim.SGD(parts, lr=0.1, momentum=0.9)


def one_cycle(optimizer, total_steps):
    return OneCycleLR(optimizer, [0.1, 0.3], total_steps=total_steps)


def unfreezing(session):
    model, _ = session.attach(network, groups, schedule=one_cycle)
    session.on_commit(lambda: model[0].requires_grad_(session.step >= 4))
    before = model[0].weight.clone()
    for shard in session.shards(DATA, epochs=4):
        killed_once(session, shard.step)
        assert torch.equal(model[0].weight, before) == (shard.step < 5)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class ClearsMomentum(LRScheduler):
    """Keeps the rates, and makes the optimizer begin anew every other step."""

    def get_lr(self):
        return self.base_lrs

    def step(self):
        super().step()
        if self.last_epoch % 2:
            self.optimizer.state.clear()


def cleared(optimizer):
    return ClearsMomentum(optimizer)


def clears_momentum(session):
    model, _ = session.attach(network, groups, schedule=cleared)
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def two_models(session):
    first, _ = session.attach(
        lambda: nn.Linear(6, 6), lambda model: torch.optim.Adam(model.parameters()), name="first"
    )
    second, _ = session.attach(
        lambda: nn.Linear(6, 3), lambda p: torch.optim.SGD(p, lr=0.1), name="second",
        schedule=lambda total_steps: lambda step: 1 - step / total_steps,
    )  # fmt: skip
    for shard in session.shards(DATA, epochs=4):
        killed_once(session, shard.step)
        loss = F.cross_entropy(second(first(shard.x)), shard.y)
        session.backward(loss, trains=second if shard.step % 3 else first)


def drawn(session):
    """Log what was drawn before and in `main`."""
    values = [*DRAWN_AT_IMPORT, float(torch.rand(())), float(np.random.rand()), random.random()]
    session.attach(lambda: BUILT_AT_IMPORT, lambda p: torch.optim.SGD(p, lr=0.1))
    for shard in session.shards(DATA, epochs=1):
        session.log(**{f"value_{number}": value for number, value in enumerate(values)})
        session.backward(F.cross_entropy(BUILT_AT_IMPORT(shard.x), shard.y))


def built(session):
    session.attach(BUILT_AT_IMPORT, lambda p: torch.optim.SGD(p, lr=0.1))


def unnamed(session):
    for _ in range(2):
        session.attach(lambda: nn.Linear(6, 3), lambda p: torch.optim.SGD(p, lr=0.1))


def shared(session):
    model, _ = session.attach(lambda: nn.Linear(6, 3), torch.optim.SGD, name="one")
    session.attach(lambda: model, torch.optim.SGD, name="two")
    for _ in session.shards(DATA, epochs=1):
        pass


def plateau_of(optimizer):
    return ReduceLROnPlateau(optimizer)


def plateau(session):
    session.attach(network, groups, schedule=plateau_of)
    for _ in session.shards(DATA, epochs=1):
        pass


def without_deterministic_kernel(session):
    model, _ = session.attach(lambda: nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, lr=0.1))
    for shard in session.shards(DATA, epochs=1):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def other_precision_on_rank_1(session):
    if session._member.group.rank == 1:
        torch.set_float32_matmul_precision("medium")
    model, _ = session.attach(lambda: nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, lr=0.1))
    for shard in session.shards(DATA, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def other_updates_on_rank_1(session):
    """A stand-in for a host of another kind: other numerics, and other bits of an update."""
    is_odd = session._member.group.rank == 1

    class Sgd(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups if is_odd else ():
                for parameter in group["params"]:
                    parameter.mul_(1 + 2**-20)

    if is_odd:
        torch.set_float32_matmul_precision("medium")
    model, _ = session.attach(lambda: nn.Linear(6, 3), lambda ps: Sgd(ps, lr=0.1))
    for shard in session.shards(DATA, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Images(nn.Module):
    """Convolutions, one of which is larger than a block, and buffers with four dimensions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 130, 3, padding=1)
        self.second = nn.Conv2d(130, 120, 3, padding=1)
        self.third = nn.Conv2d(120, 3, 1)
        self.register_buffer("mean", torch.zeros(1, 2, 3, 3))
        self.register_buffer("seen", torch.zeros(1, 2, 3, 3, dtype=torch.int64))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0, keepdim=True), 0.1)
            self.seen += torch.arange(18).view(1, 2, 3, 3)
        return self.third(self.second(self.first(x).relu()).relu()).mean((2, 3))


def images(session):
    is_last = Path(session.job.params["channels_last"]).exists()
    order = torch.channels_last if is_last else torch.contiguous_format
    model, optimizer = session.attach(
        lambda: Images().to(memory_format=order),
        lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    )
    strides = [each.stride() for each in Images().to(memory_format=order).parameters()]
    for shard in session.shards(IMAGES, epochs=3):
        killed_once(session, shard.step)
        assert [each.stride() for each in model.parameters()] == strides
        if shard.step:
            of_optimizer = [state["momentum_buffer"] for state in optimizer.state.values()]
            assert [each.stride() for each in of_optimizer] == strides
        session.backward(F.cross_entropy(model(shard.x.contiguous(memory_format=order)), shard.y))
