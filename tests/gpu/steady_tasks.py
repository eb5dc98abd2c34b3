"""A task whose later steps must not wait for the device."""

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from holdfast.worker.step.gradient_norm import norm_of_norms
from holdfast_bench.gpu.loads import LOADS, Repeated

sys.path.append(str(Path(__file__).parents[1]))
from waits import NoWait  # of all tests

WARM = 5
STEADY = 20


@contextmanager
def steady_steps(device):
    """While this is open, what waits for the device raises."""
    if device.type == "cpu":
        with NoWait():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def act_as_on_a_gpu(session):
    """Have a worker on a CPU do all that it does on a GPU: there a norm needs no number on the
    host.
    """
    session._member.join_once()
    session._member.joined.stepper._norm = norm_of_norms


def main(session):
    """Trains a load of `bench gpu` for some steps, of which the later ones are steady; then says
    how many.
    """
    load = LOADS[session.job.params["load"]]
    model, _ = session.attach(load.model, load.optimizer)
    if session.job.device == "cpu":
        act_as_on_a_gpu(session)
    data = Repeated(load, session.job.batch * (WARM + STEADY + 1))
    seen = set()
    with ExitStack() as steady:
        for shard in session.shards(data, epochs=1):
            if shard.step == WARM and not seen:
                steady.enter_context(steady_steps(shard.batch[0].device))
            if shard.step == WARM + STEADY:
                steady.close()
            elif shard.step >= WARM:
                seen.add(shard.step)
            session.backward(load.loss(model, shard.batch))
    print("steady", len(seen))
