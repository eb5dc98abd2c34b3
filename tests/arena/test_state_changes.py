"""A change of what an optimizer keeps is found, whatever it is; nothing else is."""

import pytest
import torch

from holdfast.arena.optimizer_state import StateChanges


@pytest.fixture
def optimizer():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    made = torch.optim.AdamW(parameters)
    for each in parameters[:2]:
        each.grad = torch.ones(2)
    made.step()
    return made


def entry(optimizer, number):
    return optimizer.state[optimizer.param_groups[0]["params"][number]]


def bind_an_equal_tensor(optimizer):
    entry(optimizer, 0)["step"] = entry(optimizer, 0)["step"].clone()


def rename(optimizer):
    entry(optimizer, 1)["other"] = entry(optimizer, 1).pop("exp_avg_sq")


def move_to_the_next_parameter(optimizer):
    entry(optimizer, 2)["exp_avg_sq"] = entry(optimizer, 1).pop("exp_avg_sq")


def copy_a_dictionary(optimizer):
    optimizer.state[optimizer.param_groups[0]["params"][0]] = dict(entry(optimizer, 0))


def keep_a_value(optimizer):
    optimizer.state["seen"] = 1


def count(optimizer):
    entry(optimizer, 0)["calls"] = 1000


def hold_another_optimizer(optimizer):
    optimizer.inner = torch.optim.SGD(optimizer.param_groups[0]["params"], momentum=0.9)


@pytest.mark.parametrize(
    "change",
    [
        bind_an_equal_tensor,
        rename,
        move_to_the_next_parameter,
        copy_a_dictionary,
        keep_a_value,
        count,
        hold_another_optimizer,
    ],
)
def test_a_change_is_found_once(optimizer, change):
    changes = StateChanges([optimizer])
    assert changes.found()
    assert not changes.found()
    change(optimizer)
    assert changes.found()
    assert not changes.found()


def test_a_step_that_writes_in_place_is_none(optimizer):
    changes = StateChanges([optimizer])
    assert changes.found()
    optimizer.step()
    assert not changes.found()
