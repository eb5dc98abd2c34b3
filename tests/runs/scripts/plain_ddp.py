"""Plain DistributedDataParallel: trains `ddp_tasks.Branches` without and with a hook, and with a
layer that is not always used. Rank 0 prints a line for each: its name, and the digest of the
weights.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parent.parent))
import ddp_tasks


def train(uses, hook=None, state=None, **keys):
    model = ddp_tasks.Branches()
    wrapper = DistributedDataParallel(model, **keys)
    if hook is not None:
        wrapper.register_comm_hook(state, hook)
    optimizer = ddp_tasks.sgd(model.parameters())
    for step in range(ddp_tasks.STEPS):
        optimizer.zero_grad()
        with_third = ddp_tasks.uses_third(uses, step, dist.get_rank())
        ddp_tasks.loss_of(wrapper, step, dist.get_rank(), with_third).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ddp_tasks.CLIP_NORM)
        ddp_tasks.halve(model.parameters())
        optimizer.step()
    return ddp_tasks.sha256(model)


torch.set_num_threads(1)
dist.init_process_group("gloo")
low_rank = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
digests = {
    "none": train("always"),
    "powersgd": train("always", powerSGD_hook.powerSGD_hook, low_rank),
    "unused": train("sometimes", find_unused_parameters=True),
    "alone": train("alone", find_unused_parameters=True, gradient_as_bucket_view=True),
}
if dist.get_rank() == 0:
    for name, digest in digests.items():
        print("weights", name, digest)
dist.destroy_process_group()
