"""Tasks that train on streams."""

import contextlib
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import IterableDataset


class Ramp(IterableDataset):
    def __init__(self, first=0, size=50):
        self.first, self.size = first, size

    def __iter__(self):
        for number in range(self.first, self.first + self.size):
            x = torch.tensor([number / self.size, 1.0]) + 0.1 * torch.rand(2)
            yield {"x": x, "y": x.sum()}


def squared_error(model, batch):
    return {"error": float(F.mse_loss(model(batch["x"]).squeeze(1), batch["y"]))}


def train_on(session, stream):
    model, _ = session.attach(lambda: torch.nn.Linear(2, 1), lambda p: torch.optim.SGD(p, lr=0.1))
    session.evaluate_each_epoch(stream, squared_error)
    mark = Path(session.job.params.get("mark", "nowhere"))
    for shard in session.shards(stream, epochs=3):
        if shard.step == 10 and mark.exists():
            raise ValueError("as planned")
        loss = F.mse_loss(model(shard.batch["x"]).squeeze(1), shard.batch["y"])
        session.backward(loss)


def same(session):
    train_on(session, Ramp())


def different(session):
    train_on(session, Ramp(os.getpid()))


class KilledTwice(Ramp):
    """The worker that reads it first is killed in step 40, and the other one by the replacement,
    while that reads the stream again.
    """

    def __init__(self, folder):
        super().__init__(size=400)
        self.folder = Path(folder)

    def pids(self):
        return [int(path.read_text()) for path in sorted(self.folder.glob("pid-*"))]

    def __iter__(self):
        for number, sample in enumerate(super().__iter__()):
            if number == 3 and self.is_replacement_before_its_loop():
                os.kill(self.survivor(), signal.SIGKILL)
                deadline = time.monotonic() + 60
                while len(self.pids()) < 4 and time.monotonic() < deadline:
                    time.sleep(0.01)
            yield sample

    def is_replacement_before_its_loop(self):
        return len(self.pids()) == 3 and self.pids()[-1] == os.getpid()

    def survivor(self):
        return next(
            pid for pid in self.pids()[:2] if pid != int((self.folder / "victim").read_text())
        )


def killed_twice(session):
    folder = Path(session.job.params["folder"])
    (folder / f"pid-{time.monotonic_ns():020}").write_text(str(os.getpid()))
    stream = KilledTwice(folder)
    model, _ = session.attach(lambda: torch.nn.Linear(2, 1), lambda p: torch.optim.SGD(p, lr=0.1))
    for shard in session.shards(stream):
        if shard.step == 40 and len(stream.pids()) == 2:
            with contextlib.suppress(FileExistsError), (folder / "victim").open("x") as victim:
                victim.write(str(os.getpid()))
                victim.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        loss = F.mse_loss(model(shard.batch["x"]).squeeze(1), shard.batch["y"])
        session.backward(loss)
