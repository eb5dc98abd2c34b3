"""Trains by DDP, saves each fifth step, and reports each one unless told not to."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

folder, last, *words = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saved = folder / "model.pt"
step = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    step = state["step"]
while step < last:
    optimizer.zero_grad()
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    if "silent" not in words:
        holdfast.report(step, loss=loss, samples=16)
    if "slow" in words:
        time.sleep(0.02)
    if rank == 0 and step % 5 == 0:
        torch.save({"model": model.state_dict(), "step": step}, folder / "draft.pt")
        (folder / "draft.pt").replace(saved)
    dist.barrier()
    if "killed" in words and rank == 1 and step == 13 and not (folder / "done").exists():
        (folder / "done").touch()
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
