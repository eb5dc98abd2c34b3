"""Section 5: with deterministic algorithms the built-in models compute the same bits twice."""

import pytest
import torch
import torch.nn.functional as F
from checked_device import DEVICE, ON_GPU, on_cpu

from conftest import needs_library
from holdfast import models
from holdfast.job.models import BertSpec, CnnSpec, Gpt2Spec, GptSpec, MlpSpec, ResnetSpec

pytestmark = pytest.mark.slow

IMAGES = {"mlp": MlpSpec, "cnn": CnnSpec, "resnet18": ResnetSpec, "resnet50": ResnetSpec}
TEXTS = {"gpt": GptSpec, "gpt2": Gpt2Spec, "bert": BertSpec}
NEEDS = needs_library("transformers")


@pytest.fixture(autouse=True)
def strict():
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


def bits(loss_of, tensors):
    """A loss and its gradients."""
    torch.manual_seed(0)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = loss_of()
    return [loss.detach(), *torch.autograd.grad(loss, tensors)]


def assert_same_twice(loss_of, tensors):
    first, second = (bits(loss_of, tensors) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize(
    ("name", "keys"),
    on_cpu(
        [
            ("mlp", {}),
            ("cnn", {}),
            ("resnet18", {"stem": "small"}),
            ("resnet50", {"stem": "small"}),
            ("resnet50", {"stem": "large"}),
        ],
        1,
    ),
)
def test_models_of_images_compute_the_same_bits_twice(name, keys):
    is_large = keys.get("stem") == "large"
    side = (224 if is_large else 32) if ON_GPU else (64 if is_large else 16)
    count = (64 if is_large else 512) if ON_GPU else 4
    model = models.build(IMAGES[name](name=name, **keys), shape=(3, side, side), classes=100)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(count, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(100, (count,), device=DEVICE)
    assert_same_twice(lambda: F.cross_entropy(model(x), y), list(model.parameters()))


@pytest.mark.parametrize(
    "name", on_cpu(["gpt", pytest.param("gpt2", marks=NEEDS), pytest.param("bert", marks=NEEDS)], 0)
)
def test_models_of_text_compute_the_same_bits_twice(name):
    length, count = (512, 16) if ON_GPU else (16, 2)
    model = models.build_language_model(TEXTS[name](name=name), context=length).to(DEVICE)
    tokens = torch.randint(256, (count, length + 1), device=DEVICE)

    def loss():
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    assert_same_twice(loss, [p for p in model.parameters() if p.requires_grad])


def attention(x):
    heads = x.view(2, 8, -1, 16)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


OPERATIONS = {
    "attention": attention,
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], 3),
    "bilinear": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="bilinear"),
    "cumsum": lambda x: x.cumsum(1),
    "ctc_loss": lambda x: F.ctc_loss(
        x[:, :2, :8].log_softmax(2), torch.ones(2, 3, dtype=torch.long, device=x.device),
        (x.shape[0],) * 2, (3, 3),
    ),
    "embedding_bag": lambda x: F.embedding_bag(
        torch.arange(8, device=x.device).view(2, 4) % 3, x[0], mode="sum"
    ),
    "grid_sample": lambda x: F.grid_sample(
        x[None], torch.zeros(1, 4, 4, 2, device=x.device), align_corners=False
    ),
    "index_add": lambda x: x.index_add(0, torch.zeros(9, dtype=torch.long, device=x.device), x[:9]),
    "index_put": lambda x: x.index_put(
        (torch.zeros(9, dtype=torch.long, device=x.device),), x[:9], accumulate=True
    ),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 3, stride=2, padding=1),
    "median": lambda x: x.median(1).values,
    "reflection_pad2d": lambda x: F.pad(x[None], (1, 1, 1, 1), mode="reflect"),
    "scatter_add": lambda x: x.scatter_add(
        0, torch.zeros(9, 32, 32, dtype=torch.long, device=x.device), x[:9]
    ),
}  # fmt: skip
"""Operations of which PyTorch has had kernels that add in any order."""


def test_other_operations_compute_the_same_bits_twice_or_are_refused(record_property):
    x = torch.randn(16, 32, 32, device=DEVICE, requires_grad=True)
    refused = []
    for name, operation in OPERATIONS.items():
        try:
            assert_same_twice(lambda operation=operation: operation(x).float().sum(), [x])
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            refused.append(name)
    record_property("refused", " ".join(refused))
    assert "attention" not in refused
