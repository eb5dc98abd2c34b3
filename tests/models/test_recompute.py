"""Gradient checkpointing computes blocks twice and changes nothing."""

import copy

import pytest
import torch

from holdfast import models
from holdfast.job.models import BertSpec, Gpt2Spec, GptSpec, ResnetSpec
from holdfast.models.recompute import recompute

TINY = {"width": 8, "heads": 2, "layers": 2, "dropout": 0.3}


def resnet(name, **keys):
    torch.manual_seed(1)
    spec = ResnetSpec(name=name, width=2, **keys)
    return models.build(spec, shape=(3, 8, 8), classes=4), torch.randn(4, 3, 8, 8)


def transformer(spec, **keys):
    if spec is not GptSpec:
        pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = models.build_language_model(
        spec(name=spec.__name__.removesuffix("Spec").lower(), **TINY, **keys), context=6
    )
    return model, torch.randint(256, (4, 6))


def trained_once(model, x):
    """The output, the gradients and the buffers after one step."""
    torch.manual_seed(2)
    model.train()
    y = model(x)
    y.square().mean().backward()
    return [y, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (resnet, "resnet18"),
        (resnet, "resnet50"),
        (transformer, GptSpec),
        pytest.param(transformer, Gpt2Spec, marks=pytest.mark.slow),
        pytest.param(transformer, BertSpec, marks=pytest.mark.slow),
    ],
)
def test_gradients_and_buffers_are_the_same_with_and_without(build, kind):
    without = trained_once(*build(kind))
    within = trained_once(*build(kind, gradient_checkpointing=True))
    assert len(without) > 10
    for a, b in zip(without, within, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


class Counted(torch.nn.Module):
    """A block that counts its forward passes, and keeps count in a buffer too."""

    def __init__(self):
        super().__init__()
        self.passes = 0
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.passes += 1
        self.seen += 1
        return self.linear(x).relu()


def test_a_block_is_recomputed_in_the_backward_pass_of_training_only():
    block = Counted()
    recompute([block])
    block(torch.ones(1, 2)).sum().backward()
    assert (block.passes, int(block.seen)) == (2, 1)
    block.eval()
    block(torch.ones(1, 2)).sum().backward()
    assert (block.passes, int(block.seen)) == (3, 2)


def test_a_copy_of_a_model_computes_with_its_own_weights():
    model = torch.nn.Sequential(Counted())
    recompute(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied[0].linear.weight.zero_()
        copied[0].linear.bias.fill_(3.0)
    assert copied(torch.ones(1, 2)).tolist() == [[3.0, 3.0]]
    assert (copied[0].passes, model[0].passes) == (1, 0)
