"""A task whose later steps must not wait for the device."""

from contextlib import ExitStack, contextmanager

import torch

from holdfast_bench.gpu.loads import LOADS, Repeated

WARM = 5
STEADY = 20


@contextmanager
def steady_steps(device):
    """While this is open, what waits for the device raises.

    On a CPU nothing is noticed: a mode that sees every operator would have to refuse those that
    read a tensor's value.
    """
    is_counted = device.type == "cuda"
    if is_counted:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if is_counted:
            torch.cuda.set_sync_debug_mode("default")


def main(session):
    """Trains a load of `bench gpu` for some steps, of which the later ones are steady; then says
    how many.
    """
    load = LOADS[session.job.params["load"]]
    model, _ = session.attach(load.model, load.optimizer)
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
