"""Metrics that are not means: area under the ROC curve and confusion matrix, with torchmetrics.

They are equal to what one process computes from all samples at once, for any number of workers.

python auc.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix

import holdfast

digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
training, test = TensorDataset(x[:1200], y[:1200]), TensorDataset(x[1200:], y[1200:])

JOB = {"batch": 100, "shards": 4, "evaluation": {"best": "auc"}}


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def metrics():
    return MetricCollection(
        {"auc": MulticlassAUROC(10), "confusion": MulticlassConfusionMatrix(10)}
    )


def predictions(model, batch):
    x, y = batch
    return model(x).softmax(1), y


def main(session):
    model, _ = session.attach(network, lambda p: torch.optim.AdamW(p, lr=1e-2))
    session.evaluate_each_epoch(test, predictions, metrics=metrics())
    for shard in session.shards(training, epochs=3):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


if __name__ == "__main__":
    result = holdfast.train(main, JOB | {"workers": 2})
    print(f"AUC {result.metrics['auc']:.4f}, best after step {result.best['step']}")
    for row in result.metrics["confusion"]:
        print("".join(f"{count:4}" for count in row))
