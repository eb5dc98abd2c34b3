"""A script for torchrun that trains with DDP, keeps its own checkpoints, and fails if asked to."""

import argparse
import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fault", help="in the first life: how@rank")
    options = parser.parse_args()
    checkpoint = options.directory / "checkpoint.pt"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"goes on from step {step}", flush=True)
    while step < options.steps:
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if step == 12 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            fail(options.fault, rank)
        optimizer.step()
        step += 1
        if step % 5 == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step}, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    if rank == 0:
        digest = hashlib.sha256()
        for value in model.state_dict().values():
            digest.update(value.numpy().tobytes())
        (options.directory / "weights").write_text(digest.hexdigest())
    dist.destroy_process_group()


def fail(fault, rank):
    how, _, who = (fault or "").partition("@")
    if who != str(rank):
        return
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("as planned")
        case "exit":
            sys.exit(3)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            threading.Event().wait(600)


if __name__ == "__main__":
    main()
