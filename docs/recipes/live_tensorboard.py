"""Watch a run in TensorBoard while it trains: each step and evaluation once, and what failed.

python live_tensorboard.py & tensorboard --logdir board
"""

from functools import partial

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset
from torch.utils.tensorboard import SummaryWriter

import holdfast

digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
training, test = TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])

JOB = {"batch": 100, "shards": 4}


def accuracy(model, batch):
    x, y = batch
    return {"accuracy": float((model(x).argmax(1) == y).double().mean())}


def main(session):
    model, _ = session.attach(
        lambda: torch.nn.Linear(64, 10), lambda p: torch.optim.AdamW(p, lr=2e-2)
    )
    session.evaluate_each_epoch(test, accuracy)
    for shard in session.shards(training, epochs=3):
        loss = F.cross_entropy(model(shard.x), shard.y)
        session.log(confidence=model(shard.x).softmax(1).max(1).values.mean())
        session.backward(loss)


def write(board, event):
    """Write an event of the run to TensorBoard; holdfast calls this in the launching process."""
    if event.kind in ("step", "evaluation"):
        for name, value in event.values.items():
            if value is not None:
                board.add_scalar(f"{event.kind}/{name}", value, event.step)
        board.flush()
    elif event.kind == "recovery":
        board.add_text("recovery", event.values["causes"][0]["what"], event.step)


if __name__ == "__main__":
    with SummaryWriter("board") as board:
        result = holdfast.train(main, JOB | {"workers": 2}, on_event=partial(write, board))
    print(result.metrics["accuracy"])
