"""A sharded model gets the bits of one that is not divided, with real processes."""

import pytest
import torch
from sharded_workers import train
from torch import nn

pytestmark = pytest.mark.slow


class Odd(nn.Module):
    """A model whose tensors no number of workers divides evenly."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(131, 137)
        self.blocks = nn.ModuleList(nn.Linear(137, 137) for _ in range(3))
        self.norm = nn.BatchNorm1d(137)
        self.scale = nn.Parameter(torch.ones(1))
        self.sometimes = nn.Linear(137, 137)
        self.never = nn.Parameter(torch.ones(3, 5))
        self.frozen = nn.Linear(137, 137).requires_grad_(False)
        self.head = nn.Linear(137, 131, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, shard):
        x = self.embed(x)
        for block in self.blocks:
            x = torch.relu(block(x))
        if shard % 4 == 1:
            x = x + self.sometimes(x)
        return self.head(self.frozen(self.norm(x)) * self.scale)


def loss_of(model, step, shard):
    generator = torch.Generator().manual_seed(100 * step + shard)
    x = torch.randint(131, (6 + shard,), generator=generator)
    # Shards have unlike weights; one has none, and then its loss may be anything.
    weight = shard / 40 if shard != 3 or step != 1 else 0.0
    loss = nn.functional.cross_entropy(model(x, shard), (x + 1) % 131)
    return (loss, weight) if weight else (loss * float("nan"), 0.0)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=0.5)


@pytest.mark.parametrize("optimizer", [adamw, momentum, adagrad])
def test_workers_get_the_bits_of_one(optimizer):
    reference = train(Odd, optimizer, loss_of, 1, clip_norm=0.7)
    for workers in (2, 4):
        assert train(Odd, optimizer, loss_of, workers, clip_norm=0.7) == reference


class WithEmpty(Odd):
    """The same with a parameter of which no worker has rows."""

    def __init__(self):
        super().__init__()
        self.empty = nn.Parameter(torch.ones(0, 5))


def test_a_parameter_without_elements_changes_nothing():
    state, norms = train(WithEmpty, momentum, loss_of, 2)
    without, expected = train(Odd, momentum, loss_of, 2)
    assert norms == expected
    assert {name: values for name, values in state.items() if "empty" not in name} == without
