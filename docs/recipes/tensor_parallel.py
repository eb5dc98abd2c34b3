"""Cut the layers of a transformer over the workers with DTensor; checkpoints are those of DCP.

holdfast run --workers 2 tensor_parallel.py
"""

import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, EVERY = 20, 5
CHECKPOINTS = Path(os.environ.get("HOLDFAST_RUN_DIR", "."), "dcp")  # a disk that all hosts share
TEXT = torch.tensor(list(Path(__file__).read_bytes()))  # learns this file, byte by byte
WIDTH, HEAD, CONTEXT = 64, 16, 32


class Block(nn.Module):
    """Attention with separate q, k and v: a fused projection cannot be cut by heads."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.before(x)
        # Each worker has the heads whose columns it has, so their number is left to the reshape.
        heads = [
            each(y).unflatten(2, (-1, HEAD)).transpose(1, 2) for each in (self.q, self.k, self.v)
        ]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(256, WIDTH), Block(), Block(), nn.Linear(WIDTH, 256))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
cut = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel())
cut |= dict.fromkeys(("out", "down"), RowwiseParallel())
for block in model[1:3]:
    parallelize_module(block, mesh, cut)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

step = max((int(each.parent.name) for each in CHECKPOINTS.glob("*/.metadata")), default=0)
if step:  # DCP writes .metadata last, so each worker finds the same whole checkpoint
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=CHECKPOINTS / str(step))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

while step < STEPS:
    # All workers draw the same samples: the model is cut, not the batch.
    starts = torch.randint(
        len(TEXT) - CONTEXT, (16,), generator=torch.Generator().manual_seed(step)
    )
    windows = torch.stack([TEXT[start : start + CONTEXT + 1] for start in starts])
    optimizer.zero_grad()
    loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    step += 1
    if step % EVERY == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=CHECKPOINTS / str(step))
        print(f"step {step}, loss {loss.item():.3f}")

digest = hashlib.sha256()
for weight in model.parameters():
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    digest.update(whole.detach().numpy().tobytes())
print(f"sha256 of the weights {digest.hexdigest()}")
