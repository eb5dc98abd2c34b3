"""A task whose evaluations are not means, and gather more than fits into one exchange."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F

X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(X, X.argmax(1) % 2)


def spectrum(scores, labels, wide):
    assert wide.shape == (90, 20_000)
    counts = torch.zeros(2, 2, dtype=torch.int64)
    counts.index_put_((labels, scores.argmax(1)), torch.ones_like(labels), accumulate=True)
    positive, negative = scores[labels == 1, 1], scores[labels == 0, 1]
    return {
        "confusion": counts,
        "auc": (positive[:, None] > negative).double().mean(),
        "sum": wide.sum(),
        "none": float("nan"),
    }


def measured(session):
    """Evaluates after each epoch; in the second evaluation, one worker kills itself."""
    model, _ = session.attach(lambda: torch.nn.Linear(4, 2), lambda p: torch.optim.SGD(p, lr=0.5))
    mark = Path(session.job.params["mark"])

    def outputs(model, batch):
        x, y = batch
        if session.step >= 10 and session.job.workers > 1:
            with suppress(FileExistsError):
                mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        scores = model(x).softmax(1)
        return scores, y, scores[:, :1] * torch.arange(20_000.0)

    session.evaluate_each_epoch(DATA, lambda model, batch: {"right": float(batch[1].sum())})
    session.evaluate_each_epoch(DATA, outputs, metrics={"all": spectrum})
    for shard in session.shards(DATA, epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))
