"""Train a model in stages, one a worker, in PyTorch's 1F1B schedule; checkpoints are those of DCP.

holdfast run --workers 2 pipeline_1f1b.py
"""

import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS, EVERY, MICROBATCHES = 20, 5, 4
CHECKPOINTS = Path(os.environ.get("HOLDFAST_RUN_DIR", "."), "dcp")  # a disk that all hosts share
# Flat: the optimizers of all stages fit into one checkpoint.
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return x + self.inner(x)


dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [nn.Linear(16, 64), *(Block() for _ in range(6)), nn.Linear(64, 4)]
# This worker's part of the layers, under their names in the whole model.
first, last = (len(layers) * stage // stages for stage in (rank, rank + 1))
part = nn.Sequential()
for number in range(first, last):
    part.add_module(str(number), layers[number])
stage = PipelineStage(part, rank, stages, torch.device("cpu"))
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=F.cross_entropy)
optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)

step = max((int(each.parent.name) for each in CHECKPOINTS.glob("*/.metadata")), default=0)
if step:  # DCP writes .metadata last, so each worker finds the same whole checkpoint
    weights, moments = get_state_dict(part, optimizer, options=FLAT)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=CHECKPOINTS / str(step))
    set_state_dict(
        part, optimizer, model_state_dict=weights, optim_state_dict=moments, options=FLAT
    )

while step < STEPS:
    losses = []  # of the microbatches, on the last stage
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    target = x.unflatten(1, (4, 4)).sum(2).argmax(1)
    # The first stage takes the samples, and the last one the targets.
    schedule.step(*([x] if rank == 0 else []), target=target, losses=losses)
    optimizer.step()
    step += 1
    if step % EVERY == 0:
        weights, moments = get_state_dict(part, optimizer, options=FLAT)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=CHECKPOINTS / str(step))
        if losses:
            print(f"step {step}, loss {sum(losses).item() / MICROBATCHES:.3f}")

digests = "".join(hashlib.sha256(each.detach().numpy()).hexdigest() for each in part.parameters())
everywhere = [""] * stages
dist.all_gather_object(everywhere, digests)
print(f"sha256 of the weights {hashlib.sha256(''.join(everywhere).encode()).hexdigest()}")
