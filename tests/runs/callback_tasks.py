"""Tasks with code that runs on one worker only."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(X, X.argmax(1) % 2)


def network():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))


def accuracy(model, batch):
    return {"accuracy": float((model(batch[0]).argmax(1) == batch[1]).double().mean())}


def watched(session):
    """Draws, and computes in training mode, on one worker; may kill it in the middle of that."""
    params = session.job.params
    model, _ = session.attach(network, lambda p: torch.optim.AdamW(p, lr=0.05))
    session.state["before"] = session.state.get("before", 0) + 1
    session.evaluate_each_epoch(DATA, accuracy)

    @session.main_only
    def watch(where):
        torch.randn(3), np.random.rand(), random.random()
        model.eval()
        model(X)
        model.train()
        with torch.no_grad():
            model(X)
        with Path(params["seen"]).open("a") as file:
            file.write(f"{where} {session.step} {os.getpid()}\n")
        mark = Path(params["seen"] + ".killed")
        if session.step == params.get("kill") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def after_step():
        watch("commit")
        session.state["drawn"] = random.random()

    session.on_commit(after_step)
    evaluated = None
    watch("before")
    for shard in session.shards(DATA, epochs=4):
        if params.get("in_loop"):
            watch("loop")
        if params.get("in_loop") and shard.step == 3 and not evaluated:
            evaluated = session.evaluate(DATA, accuracy)
        session.backward(F.cross_entropy(model(shard.x) + torch.rand(()), shard.y))
    watch("after")


def changing(session):
    """Changes the state on one worker, or calls what all must call, as the job says."""
    model, optimizer = session.attach(network, lambda p: torch.optim.AdamW(p, lr=0.05))

    @session.main_only
    def change():
        if session.step < 2:
            return
        match session.job.params["change"]:
            case "state":
                session.state["mine"] = 1
            case "weights":
                with torch.no_grad():
                    model[0].weight.zero_()
            case "rate":
                optimizer.param_groups[0]["lr"] = 0.1
            case "evaluate":
                session.evaluate(DATA, accuracy)
            case "log":
                session.log(mine=1.0)

    session.on_commit(change)
    for shard in session.shards(DATA, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
