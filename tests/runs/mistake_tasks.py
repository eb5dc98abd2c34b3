"""Ordinary mistakes: what people write who know PyTorch and not yet holdfast."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

inputs = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
targets = (inputs.sum(1) > 0).long()
points = TensorDataset(inputs, targets)


class Unlabelled(TensorDataset):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError(f"no label for {index}")
        return super().__getitem__(index)


class Mismatched(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 8), nn.Linear(9, 2)

    def forward(self, x):
        return self.second(self.first(x))


def linear():
    return nn.Linear(20, 2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def train_on(session, data, model=linear):
    model, _ = session.attach(model, sgd)
    for shard in session.shards(data):
        session.backward(loss_of(model, shard))


def steps_the_optimizer(session):
    model, optimizer = session.attach(linear, sgd)
    for batch in session.shards(points):
        optimizer.zero_grad()
        session.backward(loss_of(model, batch))
        optimizer.step()


def calls_loss_backward(session):
    model, _ = session.attach(linear, sgd)
    for batch in session.shards(points):
        loss_of(model, batch).backward()


def calls_no_backward(session):
    model, _ = session.attach(linear, sgd)
    for batch in session.shards(points):
        loss_of(model, batch)


def gives_a_float(session):
    model, _ = session.attach(linear, sgd)
    for batch in session.shards(points):
        session.backward(loss_of(model, batch).item())


def gives_a_model(session):
    model = linear()
    session.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def gives_an_optimizer(session):
    session.attach(linear, torch.optim.SGD(linear().parameters(), lr=0.1))


def logs_a_vector(session):
    model, _ = session.attach(linear, sgd)
    for batch in session.shards(points):
        session.backward(loss_of(model, batch))
        session.log(logits=model(batch.x))


def asks_for_its_rank(session):
    if session.rank == 0:
        print("hello")


def does_not_evaluate(session):
    train_on(session, points)


def gives_a_class(session):
    train_on(session, Unlabelled)


def gives_a_dictionary(session):
    train_on(session, {"x": inputs, "y": targets})


def gives_a_path(session):
    train_on(session, "data/train.csv")


def does_not_pad(session):
    train_on(session, [(inputs[row, : 5 + row % 4], targets[row]) for row in range(64)])


def has_an_unlabelled_sample(session):
    train_on(session, Unlabelled(inputs, targets))


def has_mismatched_layers(session):
    train_on(session, points, Mismatched)


def raises_with_a_new_message_each_time(session):
    raise ValueError(f"/tmp/{os.getpid()} is not there")


def takes_two_arguments(session, job):
    raise AssertionError("it cannot be called")


def imports_what_is_not_installed(session):
    import nowhere_to_be_found  # noqa: F401


def reads_a_parameter(session):
    assert session.job.params["hidden"] == 3
    train_on(session, points)
