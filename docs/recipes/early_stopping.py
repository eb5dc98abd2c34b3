"""Stop when an accuracy no longer improves, and keep the best checkpoint.

python early_stopping.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import holdfast

digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
training, test = TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])

JOB = {
    "batch": 100,
    "shards": 4,
    "evaluation": {"best": "accuracy", "patience": 2},
}


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def accuracy(model, batch):
    x, y = batch
    return {"accuracy": float((model(x).argmax(1) == y).double().mean())}


def main(session):
    model, _ = session.attach(network, lambda p: torch.optim.AdamW(p, lr=2e-2))
    session.evaluate_each_epoch(test, accuracy)
    for shard in session.shards(training, epochs=30):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


if __name__ == "__main__":
    result = holdfast.train(main, JOB | {"workers": 2})
    print(f"best accuracy {result.best['value']:.3f} after {result.best['step']} steps")
    print(result.best_checkpoint)
