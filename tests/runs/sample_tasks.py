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

from faults import wrap


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


class Locks:
    """A data set whose samples cannot leave the process that made them."""

    fingerprint = "locks"

    def __len__(self):
        return 8

    def batch(self, indices, generator):
        return tuple(threading.Lock() for _ in indices)


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


def locked(session):
    session.attach(net, adamw)
    for _ in session.shards(Locks(), epochs=1):
        pass


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


def long_last_words(session):
    session.attach(net, adamw)
    raise ValueError("x" * 300_000)


def tuple_state(session):
    model, _ = session.attach(net, adamw)
    session.state["pair"] = (1, 2)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


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


def raising(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        if shard.step == 2 and session._member.group.rank == 1:
            raise ValueError("the data of step 2 are odd")
        session.backward(F.cross_entropy(model(shard.x), shard.y))


class Breaking(torch.autograd.Function):
    """Passes on what it gets, and raises where it is asked for a gradient."""

    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, _gradient):
        raise RuntimeError("this function has no gradient")


def breaking(session):
    """The third step's backward pass raises on rank 1."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        loss = F.cross_entropy(model(shard.x), shard.y)
        broken = shard.step == 2 and session._member.group.rank == 1
        session.backward(Breaking.apply(loss) if broken else loss)


def talking(session):
    """Prints a line a shard; rank 1 breaks off in the middle of one."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        if shard.step == 2 and session._member.group.rank == 1:
            print("unfinished", end="")
            raise ValueError("said enough")
        print("step", shard.step)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def hungry(session):
    """Asks for more memory than an address can name."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        if shard.step == 2 and session._member.group.rank == 1:
            torch.empty(10**15)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def swelling(session):
    """Takes memory until there is no more."""
    model, _ = session.attach(net, adamw)
    taken = []
    for shard in session.shards(Points(), epochs=3):
        while shard.step == 2 and session._member.group.rank == 1:
            taken.append(b"x" * (64 << 20))
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def starving(session):
    """Takes memory too, and has the kernel end the fork server for it."""
    if session._member.group.rank == 1:  # the last to be forked: nobody inherits it
        Path(f"/proc/{os.getppid()}/oom_score_adj").write_text("1000")
    swelling(session)


def exiting(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        if shard.step == 2 and session._member.group.rank == 1:
            sys.exit(0)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def dying(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        if shard.step == 2 and session._member.group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def vanishing(session):
    """Rank 0 dies at once; the others would wait for it."""
    if session._member.group.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    session.attach(net, adamw)


def dying_in_a_checkpoint(session):
    """Rank 1 dies once rank 0 has written its part of the checkpoint of step 6."""

    def die(_):
        if session.step < 6 or session._member.group.rank != 1:
            return
        while not list(Path(session.job.params["checkpoints"]).glob("*.tmp/part-0-*")):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    wrap("holdfast.worker.checkpoint_writer:write_part", "before", die)
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
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


def measures_nothing(session):
    _model, _ = session.attach(net, adamw)
    session.evaluate(Points(), lambda model, batch: {})


def parting(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
        if shard.step == 2 and session._member.group.rank == 1:
            break


def exploding(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        loss = F.cross_entropy(model(shard.x), shard.y)
        session.log(half=loss / 2)
        session.backward(loss * float("nan") if shard.step == 3 else loss)


def always_exploding(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y) * float("inf"))


def spoilt(session):
    """Samples of shard 1 of the third step are no numbers."""
    model, _ = session.attach(lambda: net(session.job.params.get("width", 8)), adamw)
    for shard in session.shards(Points(), epochs=1):
        if shard.step == 2 and session._member.stepper._shard.leaf == 1:
            shard.x[1] = float("nan")
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def huge(session):
    """Gradients as long as `params` say are clipped to length one, not to nothing."""
    model, _ = session.attach(lambda: nn.Linear(2, 2), lambda p: torch.optim.SGD(p, lr=1.0))
    before = model.weight.clone()
    for shard in session.shards(Points(), epochs=1):
        session.backward(session.job.params["factor"] * F.cross_entropy(model(shard.x), shard.y))
    assert model.weight.isfinite().all()
    assert not torch.equal(model.weight, before)


def vector_loss(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y, reduction="none"))


def twice(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def bare_backward(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        F.cross_entropy(model(shard.x), shard.y).backward()


def no_backward(session):
    session.attach(net, adamw)
    for _ in session.shards(Points(), epochs=1):
        pass


def no_attach(session):
    for _ in session.shards(Points(), epochs=1):
        pass


def unlike_weights(session):
    def drawn_elsewhere():
        model = net()
        with torch.no_grad():
            model[0].weight.add_(os.getpid())
        return model

    session.attach(drawn_elsewhere, adamw)


def unlike_models(session):
    session.attach(lambda: nn.Linear(2, 2 + session._member.group.rank), adamw)


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


def unequal_logs(session):
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        session.log(**{f"at_{shard.size}": 1.0})
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def bad_state(session):
    model, _ = session.attach(net, adamw)
    session.state["model"] = model
    for shard in session.shards(Points(), epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def parent_of_a_child(session):
    """Has a process of its own, and tells it to end."""
    child = multiprocessing.get_context("fork").Process(target=threading.Event().wait, args=(600,))
    child.start()
    child.terminate()
    child.join(60)
    assert child.exitcode == -signal.SIGTERM
    own_loop(session)


def survived_by_a_child(session):
    """Raises on rank 1, and leaves a process behind that holds all that it had open."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        if shard.step == 2 and session._member.group.rank == 1:
            pid = os.fork()
            if pid == 0:
                threading.Event().wait(600)
            Path(session.job.params["pid"]).write_text(str(pid))
            raise ValueError("my child lives on")
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def stuck(session):
    """Never ends its third step."""
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=1):
        if shard.step == 2:
            threading.Event().wait(600)
        session.backward(F.cross_entropy(model(shard.x), shard.y))


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
