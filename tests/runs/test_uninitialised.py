"""A model whose values will be taken over is built without drawing them, if that does not show."""

import random

import pytest
import torch
from torch import nn

from holdfast.worker import uninitialised


class Drawing(nn.Module):
    """Draws something beside its parameters."""

    def __init__(self, draw):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.drawn = draw()


def test_parameters_keep_whatever_they_were_allocated_with():
    torch.manual_seed(5)
    after_drawing = nn.Linear(4, 4), torch.rand(1)
    torch.manual_seed(5)
    module = uninitialised.build(lambda: nn.Linear(4, 4))
    assert module.weight.shape == after_drawing[0].weight.shape
    assert torch.rand(1) != after_drawing[1]


def test_what_is_no_parameter_is_initialised_as_ever():
    def factory():
        module = nn.Linear(2, 2)
        module.register_buffer("ones", nn.init.ones_(torch.empty(3)))
        return module

    assert uninitialised.build(factory).ones.tolist() == [1, 1, 1]


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random])
def test_a_factory_that_draws_for_itself_is_not_taken(draw):
    assert uninitialised.build(lambda: Drawing(draw)) is None


def test_initialisers_work_again_afterwards():
    uninitialised.build(lambda: nn.Linear(2, 2))
    assert nn.init.ones_(nn.Parameter(torch.zeros(2))).tolist() == [1, 1]
