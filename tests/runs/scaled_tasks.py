"""A task whose losses are so large in some steps that gradients overflow in float16."""

import torch.nn.functional as F
from faulty_tasks import arm
from sample_tasks import Points, adamw, net


def main(session):
    """Trains on points with small losses; in the steps that `params.overflows` lists, by the number
    of steps committed before, they are multiplied by `params.factor`. Faults are as in
    `faulty_tasks`.
    """
    params = session.job.params
    for fault in params["faults"]:
        arm(session, fault)
    model, _ = session.attach(net, adamw)
    for shard in session.shards(Points(), epochs=4):
        factor = params["factor"] if shard.step in params["overflows"] else 1.0
        session.backward(factor * 0.01 * F.cross_entropy(model(shard.x), shard.y))
