"""A task whose workers die where a test wants them to, each fault once."""

import collections
import ctypes
import os
import signal
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from sample_tasks import Points, adamw
from torch import nn

from faults import is_first, wrap
from holdfast.collectives.barrier_tags import ReduceTag

PAUSES_S = {"sleep": 600, "nap": 3}
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "terminate": signal.SIGTERM,
    "abort": signal.SIGABRT,
}


def main(session):
    """Trains on points, evaluates and keeps count of its steps, while faults are injected.

    `params.faults` lists them as dictionaries: `at` and `when` are as in `faults.wrap`; `step` is
    the number of steps committed by then, `until` the most that may be; `rank` and `how` (as in
    `fail`, or damage to the checkpoint at `path`) say who and what; `mark` names a file that says
    that it has happened, or where there is none it happens again and again.
    A fault at `TreeStepper._collect` may also poison: put `value` for the gradient
    of one weight, in the shard of the step that is `which` of those that the worker computes.
    """
    for fault in session.job.params["faults"]:
        arm(session, fault)
    model, _ = session.attach(lambda: net(session.job.params.get("width", 8)), adamw)
    session.evaluate_each_epoch(Points(), measure)
    session.on_commit(lambda: note_step(session.state))
    for shard in session.shards(Points(), epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
    session.evaluate(Points(), measure)


def measuring(session):
    """Evaluates before its loop, in the middle of every third step, and when it has rested
    afterwards, while faults are injected.
    """
    for fault in session.job.params["faults"]:
        arm(session, fault)
    model, _ = session.attach(net, adamw)
    session.evaluate(Points(), measure)
    measured = None
    for shard in session.shards(Points(), epochs=2):
        loss = F.cross_entropy(model(shard.x), shard.y)
        if shard.step % 3 == 2 and measured != shard.step:
            measured = shard.step
            session.evaluate(Points(), measure)
        session.backward(loss)
    threading.Event().wait(1.5)
    session.evaluate(Points(), measure)


def busy(session):
    """Logs, keeps what it has seen, and evaluates in the middle of every fifth step, while faults
    inject; for workers with one shard each.
    """
    for fault in session.job.params["faults"]:
        arm(session, fault)
    model, _ = session.attach(net, adamw)
    session.on_commit(lambda: note_step(session.state))
    for shard in session.shards(Points(), epochs=3):
        loss = F.cross_entropy(model(shard.x), shard.y)
        session.log(half=loss / 2)
        if shard.step % 5 == 1:
            session.evaluate(Points(), measure)
        session.backward(loss)
    assert session.state["seen"] == list(range(1, session.step + 1))[-8:]


def holding(session):
    """Keeps hold of its state, and catches all that it can, while faults are injected."""
    for fault in session.job.params["faults"]:
        arm(session, fault)
    model, _ = session.attach(net, adamw)
    state = session.state
    session.on_commit(lambda: note_step(state))
    try:
        for shard in session.shards(Points(), epochs=3):
            session.backward(F.cross_entropy(model(shard.x), shard.y))
    except Exception as error:  # noqa: BLE001  # as people do
        print("caught", error)


def endless(session):
    """Trains on points until it is stopped, while faults are injected."""
    for fault in session.job.params["faults"]:
        arm(session, fault)
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=100_000):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def note_step(state):
    """Keep the last steps in the run's state."""
    seen = state.get("seen", [])
    state["seen"] = [*seen, seen[-1] + 1 if seen else 1][-8:]


def net(width=8):
    return nn.Sequential(
        nn.Linear(2, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Linear(width, 2)
    )


def measure(model, batch):
    return {"right": float((model(batch[0]).argmax(1) == batch[1]).float().mean())}


def arm(session, fault):
    calls = collections.Counter()

    def inject(arguments):
        member = session._member
        if fault["how"] == "wrong sum" and arguments[1] is not ReduceTag.REDUCED:
            return
        done = member.progress.step
        here = done == fault["step"] if "step" in fault else 0 < done <= fault["until"]
        calls[done] += 1
        if (
            calls[done] > fault.get("which", 0)
            and member.group.rank == fault["rank"]
            and here
            and member._arena.newest_generation >= fault.get("generation", 1)
            and ("mark" not in fault or is_first(fault["mark"]))
        ):
            if fault["how"] == "poison":
                arguments[0]._parameters[0].grad[0, 0] = float(fault.get("value", "nan"))
            elif fault["how"] == "wrong sum":
                member.joined.stepper._reducer._norms[-1] = float("nan")
            elif fault["how"] == "damage":
                part = next(Path(fault["path"]).glob("part-0-*"))
                part.write_bytes(part.read_bytes()[:-8] + b"damaged!")
            else:
                fail(fault["how"])

    wrap(fault["at"], fault["when"], inject)


def fail(how):
    match how:
        case "raise":
            raise ValueError("as planned")
        case "memory":
            raise MemoryError
        case "exit":
            os._exit(4)
        case "crash":
            ctypes.string_at(0)
        case "sleep" | "nap":
            threading.Event().wait(PAUSES_S[how])
        case _:
            os.kill(os.getpid(), SIGNALS[how])


def marks(faults):
    """Whether each fault has struck."""
    return [Path(fault["mark"]).exists() for fault in faults]


class Numbers(torch.utils.data.Dataset):
    """A thousand samples that are their own numbers, with noise from the global generator."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        bits = torch.tensor([float(index >> bit & 1) for bit in range(10)])
        return bits + 0.01 * torch.randn(10), index


def soaked(session):
    """Trains on numbers, logging which they were, and raises when a file tells its rank to."""
    wide = nn.Linear(10, 256), nn.BatchNorm1d(256), nn.Dropout(0.1), nn.ReLU(), nn.Linear(256, 2)
    model, _ = session.attach(lambda: nn.Sequential(*wide), adamw)
    order = Path(session.job.params["orders"]) / f"raise-{session._member.group.rank}"
    for shard in session.shards(Numbers(), epochs=session.job.params["epochs"]):
        if order.exists():
            reason = order.read_text()
            order.unlink()
            raise ValueError(reason)
        numbers = shard.y.double()
        session.log(number=numbers.mean(), square=(numbers**2).mean())
        session.backward(F.cross_entropy(model(shard.x), shard.y % 2))
