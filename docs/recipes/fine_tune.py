"""Fine-tune a saved model: a new head first, then the trunk as well.

python fine_tune.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
small, large = TensorDataset(x[:1000], y[:1000] % 2), TensorDataset(x[1000:], y[1000:])

JOB = {"batch": 100, "shards": 4}


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.trunk(x))


def adam(model):  # gets the model, so it holds the frozen trunk, too
    return torch.optim.Adam(model.parameters(), lr=5e-3)


def frozen_trunk():
    model = Classifier(10)
    model.trunk.requires_grad_(False)
    return model


def main(session):
    model, _ = session.attach(frozen_trunk, adam)
    session.on_commit(lambda: model.trunk.requires_grad_(session.step >= 16))  # from epoch 3 on
    for shard in session.shards(large, epochs=4):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def pretrain(session):
    model, _ = session.attach(lambda: Classifier(2), adam)
    for shard in session.shards(small, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


if __name__ == "__main__":
    torch.save(holdfast.train(pretrain, JOB).state_dict(), "pretrained.pt")
    given = {"path": "pretrained.pt", "strict": False}  # all but the head, which has other classes
    print(holdfast.train(main, JOB | {"workers": 2, "init_from": given}).loss)
