"""Stand-ins for gradients are used again from shard to shard, and nobody sees it."""

import torch
from torch import nn

from holdfast.worker.step.shard_gradients import ShardGradients


def shown_of(model):
    return ShardGradients(dict(model.named_parameters()), [])


def gradients_of(model, value):
    return [torch.full_like(p, value) for p in model.parameters()]


def test_a_stand_in_is_used_again_unless_it_is_held():
    model = nn.Linear(2, 3)
    shown = shown_of(model)
    shown.show(gradients_of(model, 1.0))
    first = id(model.weight.grad)
    kept = model.bias.grad
    shown.end()
    shown.show(gradients_of(model, 2.0))
    assert id(model.weight.grad) == first or not hasattr(torch.Tensor, "_use_count")
    assert model.weight.grad.sum() == 12
    assert model.bias.grad is not kept
    assert (kept.sum(), model.bias.grad.sum()) == (3, 6)
    shown.end()


def test_a_parameter_may_lack_a_gradient_in_some_shards():
    model = nn.Linear(2, 3)
    shown = shown_of(model)
    for has in (True, False, False, True):
        weight, bias = gradients_of(model, 1.0)
        shown.show([weight, bias if has else None])
        assert (model.bias.grad is not None) == has
        shown.end()
    assert model.bias.grad is None


def test_a_gradient_of_another_layout_gets_a_stand_in_of_that_layout():
    model = nn.Linear(2, 3, bias=False)
    shown = shown_of(model)
    for gradient in (torch.ones(3, 2), torch.ones(2, 3).T, torch.zeros(()).expand(3, 2)):
        shown.show([gradient])
        assert model.weight.grad.stride() == gradient.stride()
        assert model.weight.grad.is_contiguous() == gradient.is_contiguous()
        shown.end()


def test_cleared_gradients_of_one_shard_are_shown_in_the_next():
    model = nn.Linear(2, 3)
    shown = shown_of(model)
    for value in (1.0, 2.0):
        shown.show(gradients_of(model, value))
        assert model.weight.grad.sum() == 6 * value
        model.zero_grad(set_to_none=False)
        assert model.weight.grad.sum() == 0
        shown.end()


def test_what_user_code_keeps_does_not_change_when_the_gradient_is_added_to():
    model = nn.Linear(2, 3)
    shown = shown_of(model)
    weight, bias = gradients_of(model, 1.0)
    shown.show([weight, bias])
    kept = [model.weight.grad, model.weight.grad[0], model.bias.grad.detach()]
    shown.end()
    weight.add_(1)
    bias.add_(1)
    assert [each.sum() for each in kept] == [6, 2, 3]
