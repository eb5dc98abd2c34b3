"""Which optimizers can step some elements of a parameter apart from the others."""

import pytest
import torch
from torch import nn, optim

from holdfast.worker.checks.optimizer_cut import can_be_cut, can_be_divided

STRIDE = 64


class Clipping(optim.SGD):
    """Clips the gradient by its own norm."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 1.0)
        return super().step(closure)


class Learning(optim.SGD):
    """Learns its rate from all weights."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 1 + float(sum(p.grad.sum() for p in group["params"]))
        return super().step(closure)


class Noisy(optim.SGD):
    """Adds what it draws."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad += torch.randn_like(parameter)
        return super().step(closure)


def parameters():
    model = nn.Sequential(nn.Linear(50, 40), nn.BatchNorm1d(40), nn.Conv1d(3, 4, 3))
    return list(model.parameters())


def groups():
    own = parameters()
    return [{"params": own[:2], "lr": 0.0}, {"params": own[2:], "weight_decay": 0.1}]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
        (optim.AdamW, {"fused": True}),
        (optim.AdamW, {"foreach": True, "amsgrad": True}),
        (optim.Adagrad, {"initial_accumulator_value": 0.3, "fused": True}),
        (optim.RMSprop, {"centered": True}),
        (optim.NAdam, {}),
        (optim.Rprop, {}),
    ],
)
@pytest.mark.parametrize("of", [parameters, groups])
def test_optimizers_that_step_each_element_by_itself_can_be_cut(kind, keys, of):
    assert can_be_cut(kind(of(), **keys), STRIDE)


@pytest.mark.parametrize("kind", [optim.Adafactor, Clipping, Learning, Noisy])
def test_optimizers_whose_elements_depend_on_each_other_cannot(kind):
    assert not can_be_cut(kind(parameters(), lr=0.1), STRIDE)


@pytest.mark.parametrize(
    ("kind", "is_divided"),
    [
        (optim.AdamW, True),
        (optim.Adagrad, True),
        (optim.Adafactor, True),
        (Clipping, False),
        (Learning, False),
        (Noisy, False),
    ],
)
def test_optimizers_can_be_divided_unless_parameters_depend_on_each_other(kind, is_divided):
    own = parameters()
    assert can_be_divided(kind(own, lr=0.1), own[2:]) == is_divided


def test_the_optimizer_and_the_generator_are_left_as_they_were():
    own = parameters()
    before = [each.clone() for each in own]
    optimizer = optim.Adagrad(own)
    state = torch.get_rng_state()
    can_be_cut(optimizer, STRIDE)
    assert all(map(torch.equal, own, before))
    assert all(not values["step"] for values in optimizer.state.values())
    assert torch.equal(torch.get_rng_state(), state)
