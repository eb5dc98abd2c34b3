"""Models that `bench balance` trains, and holdfast's way of doing it.

    cnn        holdfast's CNN on images as those of CIFAR-10     16 samples a shard
    resnet18   ResNet-18 of width 16 on those of CIFAR-100        8 samples a shard
    gpt        a GPT of 0.8 M parameters on 64 bytes of text      4 samples a shard

The models, optimizers and batch shapes are those of holdfast's built-in jobs; the samples are drawn
from a generator. A shard takes about 10 to 40 ms of one core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from torch import nn, optim

from holdfast.models.gpt import Gpt
from holdfast.models.resnet import BasicBlock, ResNet
from holdfast.models.small import SmallCnn
from holdfast_bench.unlike.slowed import Mode, SlowedDevice
from holdfast_bench.unlike.step_log import StepLog
from holdfast_bench.workloads import CONTEXT, Images, RandomDataset, Tokens, Workload

if TYPE_CHECKING:
    from holdfast.worker.session import Session


class Cnn(Images):
    """The model of the built-in job cifar10 with `model.name=cnn`."""

    batch_size = 16

    def model(self) -> nn.Module:
        return SmallCnn(3, 16, self.classes, 0.0)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=1e-3, fused=True)


class Resnet18(Cnn):
    """The model of the built-in job cifar100, at the width of cifar10."""

    batch_size = 8
    classes = 100

    def model(self) -> nn.Module:
        return ResNet(
            BasicBlock,
            (2, 2, 2, 2),
            channels=3,
            width=16,
            classes=self.classes,
            large=False,
            gradient_checkpointing=False,
        )


class GptText(Tokens):
    """The model of the built-in job text."""

    batch_size = 4
    vocabulary = 256

    def model(self) -> nn.Module:
        return Gpt(
            vocabulary=self.vocabulary,
            context=CONTEXT,
            width=128,
            heads=4,
            layers=4,
            dropout=0.1,
            gradient_checkpointing=False,
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=2e-3, weight_decay=0.1, fused=True)


MODELS: Final[dict[str, type[Workload]]] = {"cnn": Cnn, "resnet18": Resnet18, "gpt": GptText}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Work of each process of a run, whichever system it is.

    Attributes:
        workload: What is trained.
        steps: How many.
        factors: How many times slower each process's device is.
        mode: How that is emulated.
        groups: The control group that each process enters; empty without quotas, or for none.
        folder: Where steps are logged.
    """

    workload: str
    steps: int
    factors: tuple[float, ...]
    mode: Mode
    groups: tuple[str, ...]
    folder: str

    @classmethod
    def of_params(cls, params: dict[str, Any]) -> Self:
        """The training that `as_params` was made of."""
        return cls(**{**params, "factors": tuple(params["factors"])})

    def as_params(self) -> dict[str, Any]:
        """This as parameters of a job."""
        return asdict(self)

    def begin(self, rank: int) -> tuple[Workload, SlowedDevice, StepLog]:
        """Prepare process `rank`, which is limited from now on if a quota says so."""
        if self.groups and self.groups[rank]:
            (Path(self.groups[rank]) / "cgroup.procs").write_text("0")
        device = SlowedDevice(self.factors[rank], self.mode)
        return MODELS[self.workload](), device, StepLog(Path(self.folder), rank, device)


def train(session: Session) -> None:
    """The training function that holdfast runs."""
    training = Training.of_params(session.job.params)
    # A session hides its rank from user code; here it is the place where a device is.
    workload, device, log = training.begin(session._member.group.rank)
    model, _ = session.attach(workload.model, workload.optimizer)
    session.on_commit(log.end_step)
    samples = RandomDataset(workload, session.job.batch * training.steps)
    for shard in session.shards(samples, steps=training.steps):
        with device.slowed():
            session.backward(workload.loss(model, shard.batch))
        log.add(shards=shard.size // workload.batch_size, samples=shard.size)
