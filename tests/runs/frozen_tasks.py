"""Training functions over frozen tensors that the workers of a host share."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from holdfast import JobError
from holdfast.data.catalog import digits

WIDTH = 256


class Adapted(nn.Module):
    """A frozen layer, with a small one that is trained."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = nn.Parameter(frozen["weight"], requires_grad=False)
        self.register_buffer("scale", frozen["scale"])
        self.adapter = nn.Linear(64, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(torch.relu(F.linear(x, self.frozen) * self.scale + self.adapter(x)))


def build(seed, mark):
    """The frozen tensors; each build appends a line to a file."""
    with Path(mark).open("a") as file:
        file.write(f"{os.getpid()}\n")
    generator = torch.Generator().manual_seed(seed)
    yield "weight", torch.randn(WIDTH, 64, generator=generator)
    yield "scale", torch.tensor([0.5])


def claims(path):
    """Whether this process is the first that asks."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def train(session):
    params = session.job.params
    seed = int(Path(params["seed"]).read_text()) + (
        bool(params.get("odd")) and claims(params["odd"])
    )
    mark = params["mark"]
    frozen = session.base(
        "layer", lambda: build(seed, mark), key={"seed": seed}, cache=Path(params["cache"])
    )
    model, _ = session.attach(lambda: Adapted(frozen), lambda p: torch.optim.AdamW(p, lr=0.01))
    splits = digits(augment=False)
    session.evaluate_each_epoch(splits.test, measure)
    for number, shard in enumerate(session.shards(splits.training)):
        if params.get("writes") and number == 3:
            model.frozen.data.add_(1)
        if params.get("damages") and number == 3 and claims(params["damages"]):
            (file,) = Path(params["cache"]).glob("layer-*/tensors")
            with file.open("r+b") as tensors:
                tensors.seek(file.stat().st_size // 256 * 9)
                tensors.write(b"\xff\xff")
        if params.get("replaces") and number == 3:
            model.frozen.data = model.frozen.data.clone()
        x, y = shard.batch
        session.backward(F.cross_entropy(model(x), y))


def measure(model, batch):
    return {"test_loss": float(F.cross_entropy(model(batch[0]), batch[1]))}


def train_frozen(session):
    """Tries to train a tensor of a base."""
    frozen = session.base("layer", lambda: build(0, "/dev/null"), key={})

    def model():
        adapted = Adapted(frozen)
        adapted.frozen.requires_grad_(True)
        return adapted

    try:
        session.attach(model, torch.optim.AdamW)
    except JobError as error:
        print(f"refused: {error}", flush=True)
        raise
