"""The residual networks are the published ones."""

import pytest
import torch

from holdfast import models
from holdfast.job.load import load
from holdfast.job.models import ResnetSpec


@pytest.mark.parametrize(
    ("name", "published"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)]
)
def test_the_published_network_has_as_many_parameters(name, published):
    with torch.device("meta"):
        model = models.build(ResnetSpec(name=name, stem="large"), shape=(3, 224, 224), classes=1000)
        assert sum(p.numel() for p in model.parameters()) == published
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
        assert model.stages(model.stem(torch.zeros(2, 3, 224, 224))).shape[2:] == (7, 7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_small_stem_keeps_the_resolution_of_small_images(name):
    with torch.device("meta"):
        model = models.build(ResnetSpec(name=name, width=8), shape=(1, 32, 32), classes=10)
        assert model.stem(torch.zeros(2, 1, 32, 32)).shape == (2, 8, 32, 32)
        assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 10)


def test_the_built_in_job_trains_on_real_images_as_its_description_says():
    job = load("resnet50", ["data.name=cifar100", "data.path=cifar-100-python.tar.gz"])
    assert (job.data.name, job.model.width) == ("cifar100", 64)
