"""The parts by which a pipeline divides the built-in models."""

import pytest
import torch

from conftest import needs_library
from holdfast import models
from holdfast.job.models import CnnSpec, Gpt2Spec, GptSpec, MlpSpec, ResnetSpec
from holdfast.worker.step.pipeline.model_parts import costs_of, parts_of

TINY = {"width": 16, "heads": 2, "layers": 2, "dropout": 0.2}
CLASSIFIERS = {
    "mlp": (MlpSpec, {"hidden": (8, 8), "dropout": 0.2}),
    "cnn": (CnnSpec, {"width": 4, "dropout": 0.2}),
    "resnet18": (ResnetSpec, {"width": 4}),
    "resnet50": (ResnetSpec, {"width": 2, "gradient_checkpointing": True}),
}
LANGUAGE = [
    pytest.param("gpt", GptSpec, id="gpt"),
    pytest.param("gpt2", Gpt2Spec, id="gpt2", marks=needs_library("transformers")),
]


def compare(model, x):
    """That the parts of a model, one after the other, are the model, and have all its tensors."""
    parts = parts_of(model)
    torch.manual_seed(1)
    whole = model(x)
    torch.manual_seed(1)
    value = x
    for part in parts:
        value = part.compute(value)
    assert torch.equal(value, whole)
    used = {id(each) for part in parts for each in part.tensors()}
    assert used == {id(each) for each in [*model.parameters(), *model.buffers()]}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_parts_of_a_classifier_are_the_whole(name):
    kind, keys = CLASSIFIERS[name]
    model = models.build(kind(name=name, **keys), shape=(3, 8, 8), classes=5)
    model.train()
    compare(model, torch.randn(4, 3, 8, 8))


@pytest.mark.parametrize(("name", "kind"), LANGUAGE)
def test_the_parts_of_a_language_model_are_the_whole(name, kind):
    spec = kind(name=name, **TINY)
    model = models.build_language_model(spec, context=12)
    model.train()
    compare(model, torch.randint(256, (3, 12)))


def test_an_embedding_costs_nothing_where_it_is_looked_up():
    model = models.build_language_model(GptSpec(name="gpt", **TINY), context=12)
    first, *blocks, last = costs_of(parts_of(model))
    assert first == 0
    assert len(set(blocks)) == 1
    assert last == 256 * TINY["width"] + 2 * TINY["width"]
