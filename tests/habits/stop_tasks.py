"""Training functions that take long before their first step, or in an evaluation."""

import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, X.sum(1))


def waits_while(folder, what):
    """Take as long as the file `what` is in `folder`; `what` with an s shows that this began."""
    if folder and Path(folder, what).exists():
        Path(folder, f"{what}s").touch()
        threading.Event().wait(600)


def fit(session, folder):
    model, _ = session.attach(lambda: nn.Linear(4, 1), lambda p: torch.optim.SGD(p, lr=0.1))

    def measure(model, batch):
        waits_while(folder, "measure")
        x, y = batch
        return {"error": functional.mse_loss(model(x).squeeze(1), y)}

    session.evaluate_each_epoch(DATA, measure)
    waits_while(folder, "prepare")
    for x, y in session.shards(DATA):
        session.backward(functional.mse_loss(model(x).squeeze(1), y))
        if session.step == 7 and folder:
            session.evaluate(
                DATA, lambda *_: waits_while(folder, "look") or {"seen": torch.ones(())}
            )


def whole(session):
    fit(session, "")


def waiting(session):
    fit(session, session.job.params["folder"])
