"""A task of even pace, with faults that cost what they say: each happens once."""

import os
import signal
import time
from pathlib import Path

import torch.nn.functional as F
from sample_tasks import Points, adamw, net

from faults import is_first, wrap

A_SHARD = "holdfast.worker.step.tree:TreeStepper.begin_shard"
PLACES = {
    "data": "holdfast.worker.loop.training_loop:TrainingLoop._read",
    "checkpoint": "holdfast.worker.checkpoints.saver:CheckpointSaver._staged",
}
"""Where a fault happens, by its kind; the others happen in a shard."""


def main(session):
    """Trains on points. `params.faults` are dictionaries: `kind`, `rank`, the `step` that is
    committed before, and for delays how many `seconds` they take.
    """
    for number, fault in enumerate(session.job.params["faults"]):
        arm(session, fault, Path(session.job.params["marks"], str(number)))
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), steps=session.job.params["steps"]):
        time.sleep(session.job.params["pace_s"])
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def arm(session, fault, mark):
    def inject(_):
        member = session._member
        here = (member.group.rank, member.progress.step) == (fault["rank"], fault["step"])
        if here and is_first(mark):
            fail(fault)

    wrap(PLACES.get(fault["kind"], A_SHARD), "before", inject)


def fail(fault):
    match fault["kind"]:
        case "raise":
            raise ValueError("as planned")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            time.sleep(fault["seconds"])
