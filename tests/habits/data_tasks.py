"""Tasks that read data as people do with PyTorch's DataLoader."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

NUMBERS = torch.arange(40.0)
DATA = TensorDataset(NUMBERS[:, None] / 40, (NUMBERS * 3)[:, None] / 40)


def linear():
    return torch.nn.Linear(1, 1)


def attach(session):
    model, _ = session.attach(linear, lambda p: torch.optim.SGD(p, lr=0.05))
    return model


def die_once(session, shard):
    mark = Path(session.job.params.get("mark", "nowhere"))
    if shard.step == session.job.params.get("at"):
        with suppress(FileNotFoundError):  # another worker was first, or it is not there
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def train_on(session, data, **options):
    model = attach(session)
    for shard in session.shards(data, **options):
        die_once(session, shard)
        session.log(number=40 * shard.x.mean())
        session.backward(F.mse_loss(model(shard.x), shard.y))


def error(model, batch):
    return {"error": F.mse_loss(model(batch[0]), batch[1]), "number": 40 * batch[0].mean()}


def in_order(session):
    """Trains in the order of the data, and validates on a part of them."""
    kept = SubsetRandomSampler([3, 5, 7, 13, 20])
    session.evaluate_each_epoch(DataLoader(DATA, batch_size=2, sampler=kept), error)
    train_on(session, DataLoader(DATA, batch_size=16, shuffle=False))


class Curriculum(Sampler):
    """Begins with easy samples, and draws the others from generators of all kinds."""

    def __init__(self):
        self.own = np.random.default_rng(5)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 30

    def __iter__(self):
        yield from range(self.epoch, 10 + self.epoch)
        yield from self.own.permutation(40)[:10]
        yield from (random.randrange(40) for _ in range(5))
        yield from torch.randint(40, (5,))


SAMPLERS = {
    "weighted": lambda: WeightedRandomSampler(NUMBERS, 30),
    "generator": lambda: WeightedRandomSampler(
        NUMBERS, 30, generator=torch.Generator().manual_seed(2)
    ),
    "own": Curriculum,
}


def sampled(session):
    params = session.job.params
    sampler = SAMPLERS[params["sampler"]]()
    if Path(params["mark"]).with_name("changed").exists():
        sampler.weights = torch.ones(40, dtype=torch.double)
        sampler.own = np.random.default_rng(6)
    loader = DataLoader(DATA, batch_size=10, sampler=sampler, num_workers=params["loaders"])
    session.evaluate_each_epoch(loader, error)
    train_on(session, loader)


GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(40, 5, generator=GENERATOR)
Y = 3 * X.sum(1)
DAMAGED = {*range(9), *range(20, 29)}
LEFT = [number for number in range(40) if number not in DAMAGED]
ROWS = [None if number in DAMAGED else (X[number], Y[number]) for number in range(40)]


class Rows(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


def undamaged(rows):
    return default_collate([row for row in rows if row is not None])


def wide():
    torch.manual_seed(9)
    return torch.nn.Linear(5, 1)


def wide_error(model, batch):
    return {"error": F.mse_loss(model(batch[0]).squeeze(1), batch[1])}


def positive(rows):
    return default_collate([(x, y) for x, y in rows if y > 0])


def dropping(session):
    """Half of the samples are damaged, unevenly over the shards; some shards have none."""
    model, _ = session.attach(wide, lambda p: torch.optim.SGD(p, lr=0.05))
    collate = None
    match session.job.params["kind"]:
        case "stream":
            data = Rows()
            collate = undamaged
        case "loader":
            data = DataLoader(ROWS, 40, collate_fn=undamaged)
        case "criterion":
            data = DataLoader(TensorDataset(X, Y), 40, shuffle=True, collate_fn=positive)
    session.evaluate_each_epoch(data, wide_error, collate=collate)
    for shard in session.shards(data, collate=collate):
        assert shard.size == len(shard.x)
        session.backward(F.mse_loss(model(shard.x).squeeze(1), shard.y))


def unseeded(size=30):
    return [DATA[int(number)] for number in np.random.default_rng().permutation(40)[:size]]


class Unlike(Sampler):
    """Draws alike in the first epoch, and then by a generator of its own, without a seed."""

    def __init__(self):
        self.epochs = 0

    def __len__(self):
        return 20

    def __iter__(self):
        self.epochs += 1
        yield from range(20) if self.epochs < 3 else np.random.default_rng().permutation(40)[:20]


class Flipped:
    """Reading it twice gives other samples, as augmentation does that has its own generator."""

    def __init__(self):
        self.own = np.random.default_rng()

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x, y = DATA[index]
        return x + 0.01 * self.own.random(dtype=np.float32), y


def unlike(session):
    match session.job.params["kind"]:
        case "split":
            train_on(session, unseeded())
        case "length":
            train_on(session, [*DATA][: 30 + os.getpid() % 7])
        case "evaluated":
            session.evaluate_each_epoch(unseeded(), error)
            train_on(session, DATA)
        case "sampler":
            train_on(session, DataLoader(DATA, 10, sampler=Unlike()))
        case "flipped":
            train_on(session, Flipped())


def damaged(session):
    model = attach(session)
    for shard in session.shards([None] * 40, collate=undamaged):
        session.backward(F.mse_loss(model(shard.x), shard.y))
