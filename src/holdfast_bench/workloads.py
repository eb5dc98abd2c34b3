"""The training jobs that benchmarks run, small enough for a laptop's cores.

    small      a CNN of 0.1 M parameters on images of 3x32x32, SGD      compute, little state
    large      an MLP of 25 M parameters, Adam                          communication and state
    lm         a GPT of 10 M parameters, AdamW                          between the two
    vit        a vision transformer of 1.2 M parameters, AdamW          many small operations
    vit-bf16   the same with forward passes in bfloat16

Their data is drawn from a generator, so that reading it costs the same however they are run. Each
is a task for holdfast, and the plain loops use the same models and batches. Little but torch is
imported here, so that a plain loop starts as fast as its user's would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import nn, optim

if TYPE_CHECKING:
    from holdfast.data.dataset import Batch
    from holdfast.data.permutation import Indices
    from holdfast.job.train_job import TrainJob

VOCABULARY: Final = 8192
CONTEXT: Final = 64


class RandomDataset:
    """A data set that makes its samples up when they are asked for.

    Args:
        workload: Draws them.
        size: Samples it claims to hold.
    """

    fingerprint = "drawn"

    def __init__(self, workload: Workload, size: int) -> None:
        self._workload = workload
        self._size = size

    def __len__(self) -> int:
        return self._size

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """So many samples as `indices` are."""
        return self._workload.draw(len(indices), generator)


class Workload(Protocol):
    """Model, optimizer, batches and loss.

    Attributes:
        batch_size: Samples of a worker and step.
        precision: The job's key.
    """

    batch_size: int
    precision: str

    def model(self) -> nn.Module:
        """A new model."""
        ...

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        """A new optimizer."""
        ...

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """So many samples and their targets."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean loss over a batch."""
        ...


class Images:
    """Color images of 32 x 32 pixels in so many classes."""

    precision = "fp32"
    classes = 10

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 3, 32, 32, generator=generator)
        return x, torch.randint(self.classes, (count,), generator=generator)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


class Tokens:
    """Windows of a text of so many tokens, each of which is predicted."""

    precision = "fp32"
    vocabulary = VOCABULARY

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(self.vocabulary, (count, CONTEXT + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


class Small(Images):
    """Three convolutions and a linear head."""

    batch_size = 80

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters, lr=0.01, momentum=0.9)


class Large:
    """Four linear layers, 1024-3072-3072-3072-1024."""

    batch_size = 32
    precision = "fp32"

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(1024, 3072),
            nn.ReLU(),
            nn.Linear(3072, 3072),
            nn.ReLU(),
            nn.Linear(3072, 3072),
            nn.ReLU(),
            nn.Linear(3072, 1024),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.Adam(parameters, lr=1e-4, fused=True)

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 1024, generator=generator)
        return x, torch.randn(count, 1024, generator=generator)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.mse_loss(model(batch[0]), batch[1])


class Language(Tokens):
    """Six transformer blocks of width 320 over 64 of 8,192 tokens."""

    batch_size = 4

    def model(self) -> nn.Module:
        from holdfast.models.gpt import Gpt

        return Gpt(
            vocabulary=VOCABULARY,
            context=CONTEXT,
            width=320,
            heads=5,
            layers=6,
            dropout=0.0,
            gradient_checkpointing=False,
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=3e-4, fused=True)


class Vit(Images):
    """Six transformer blocks of width 128 over the 16 patches of an image of 3x32x32."""

    batch_size = 32

    def model(self) -> nn.Module:
        block = nn.TransformerEncoderLayer(
            128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        return nn.Sequential(
            nn.Conv2d(3, 128, 8, stride=8),
            nn.Flatten(2),
            _Positions(128, 16),
            nn.TransformerEncoder(block, 6, enable_nested_tensor=False),
            nn.LayerNorm(128),
            nn.Linear(128, 10),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=1e-3, fused=True)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]).mean(1), batch[1])


class _Positions(nn.Module):
    """Turns channels of patches into tokens, and adds their positions."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(0.02 * torch.randn(count, width))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return patches.transpose(1, 2) + self.embedding


class VitInHalf(Vit):
    """The same workload under PyTorch's autocast."""

    precision = "bf16"


WORKLOADS: Final[dict[str, type[Workload]]] = {
    "small": Small,
    "large": Large,
    "lm": Language,
    "vit": Vit,
    "vit-bf16": VitInHalf,
}


def job_keys(workload: str, workers: int, steps: int) -> dict[str, Any]:
    """The keys of a job that trains a workload; the batch of a worker is constant."""
    return {
        "name": workload,
        "task": "holdfast_bench.workloads:BenchTask",
        "params": {"workload": workload, "steps": steps},
        "batch": WORKLOADS[workload].batch_size * workers,
        "workers": workers,
        "precision": WORKLOADS[workload].precision,
        "checkpoint": {"every_steps": 0},
    }


def plain_loss(workload: Workload, model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss as a loop computes it that its users write without holdfast."""
    with torch.autocast("cpu", torch.bfloat16, enabled=workload.precision == "bf16"):
        return workload.loss(model, batch)


class BenchTask:
    """A workload as holdfast's task; `params` names it and says how many steps to run."""

    def __init__(self, job: TrainJob) -> None:
        self._workload = WORKLOADS[job.params["workload"]]()
        self._size = job.batch * job.params["steps"]
        self.model = self._workload.model
        self.optimizer = self._workload.optimizer
        self.loss = self._workload.loss

    def training_data(self) -> RandomDataset:
        return RandomDataset(self._workload, self._size)

    def test_data(self) -> None:
        return None

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return {"loss": float(self.loss(model, batch))}
