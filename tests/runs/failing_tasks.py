"""Tasks that go wrong: they misuse the session, lose a worker, or compute what is no number."""

import os
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from sample_tasks import Points, adamw, net
from torch import nn

from faults import wrap


class Locks:
    """A data set whose samples cannot leave the process that made them."""

    fingerprint = "locks"

    def __len__(self):
        return 8

    def batch(self, indices, generator):
        return tuple(threading.Lock() for _ in indices)


def locked(session):
    session.attach(net, adamw)
    for _ in session.shards(Locks(), epochs=1):
        pass


def long_last_words(session):
    session.attach(net, adamw)
    raise ValueError("x" * 300_000)


def tuple_state(session):
    model, _ = session.attach(net, adamw)
    session.state["pair"] = (1, 2)
    for shard in session.shards(Points(), epochs=1):
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
    """Rank 1 dies before it stages its part of the checkpoint of step 6."""

    def die(_):
        if session.step == 6 and session._member.group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    wrap("holdfast.worker.checkpoints.saver:CheckpointSaver._staged", "before", die)
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def measures_nothing(session):
    _model, _ = session.attach(net, adamw)
    session.evaluate(Points(), lambda model, batch: {})


def leaving_early(session):
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
        if shard.step == 2 and session._member.joined.stepper._pass.shard.leaf == 1:
            shard.x[1] = float("nan")
        session.backward(F.cross_entropy(model(shard.x), shard.y))


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


def different_weights(session):
    def drawn_elsewhere():
        model = net()
        with torch.no_grad():
            model[0].weight.add_(os.getpid())
        return model

    session.attach(drawn_elsewhere, adamw)


def different_models(session):
    session.attach(lambda: nn.Linear(2, 2 + session._member.group.rank), adamw)


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
