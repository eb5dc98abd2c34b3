"""The job: everything that a run is asked to do, checked.

Every key has its meaning and range here and nowhere else. What a key may hold is written so that
the message of a refused value says what would have been right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.core.plan import Plan

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Spec(BaseModel):
    """A part of a job: immutable, and closed to keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DigitsData(Spec):
    """scikit-learn's handwritten digits: 1,797 grey images of 8x8, in 10 classes."""

    name: Literal["digits"]
    augment: bool = False
    """Shift every training image by up to a pixel each way, anew in every epoch."""


class SyntheticImages(Spec):
    """Images made up from a seed: a pattern a class, and noise."""

    name: Literal["synthetic-images"]
    size: Count = 2048
    channels: Count = 3
    height: Count = 32
    classes: Annotated[int, Field(ge=2)] = 10
    augment: bool = False
    """Mirror every other training image, chosen anew in every epoch."""


class Cifar(Spec):
    """CIFAR-10 or CIFAR-100 in its published form."""

    name: Literal["cifar10", "cifar100"]
    path: Path | None = None
    """The published directory, or the tar.gz that holds it."""
    augment: bool = True
    """Shift training images by up to 4 pixels and mirror half of them, anew in every epoch."""


class Text(Spec):
    """A text, read as bytes."""

    name: Literal["text"]
    path: Path | None = None
    """A file or folder; by default the language reference that Python carries."""
    length: Count = 64
    """Bytes of context that a sample gives."""


class Mlp(Spec):
    """Linear layers with ReLU between them."""

    name: Literal["mlp"]
    hidden: tuple[Count, ...] = (128,)
    dropout: Fraction = 0.0


class Cnn(Spec):
    """Two convolutions with batch normalisation, and a linear layer."""

    name: Literal["cnn"]
    width: Count = 16
    dropout: Fraction = 0.0


class Resnet18(Spec):
    """ResNet-18 with the stem for small images."""

    name: Literal["resnet18"]
    width: Count = 64
    """Channels of the first stage; the published network has 64."""


class Gpt(Spec):
    """A small decoder-only transformer over bytes."""

    name: Literal["gpt"]
    width: Count = 128
    heads: Count = 4
    layers: Count = 4
    dropout: Fraction = 0.1


class AdamW(Spec):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    name: Literal["adamw"]
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class Sgd(Spec):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: Annotated[float, Field(gt=0)] = 0.1
    momentum: Fraction = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class Constant(Spec):
    """The learning rate stays, after a linear warm-up."""

    name: Literal["constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class Cosine(Spec):
    """The learning rate falls to zero along a half cosine, after a linear warm-up."""

    name: Literal["cosine"]
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class Checkpoints(Spec):
    """When checkpoints are written; one is written at the end and on a request to stop anyway."""

    every_steps: Annotated[int, Field(ge=0)] = 100
    """Steps from one checkpoint to the next; 0 writes none on the way."""
    keep: Count = 2
    """How many of the newest to keep."""


Data = Annotated[DigitsData | SyntheticImages | Cifar | Text, Field(discriminator="name")]
Model = Annotated[Mlp | Cnn | Resnet18 | Gpt, Field(discriminator="name")]
Optimizer = Annotated[AdamW | Sgd, Field(discriminator="name")]
Schedule = Annotated[Constant | Cosine, Field(discriminator="name")]


class Job(Spec):
    """A training job.

    The keys in `FREE_ON_RESUME` may differ when a run is resumed: none of them shows in the
    weights.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "job"
    """Names the run's directory."""
    task: str = "classification"
    """`classification`, `language`, or your own: `package.module:name` or `path/to/file.py:name`,
    where name is a task class or a function that takes the session."""
    params: dict[str, Any] = {}
    """Anything that your own task wants to know."""

    data: Data | None = None
    model: Model | None = None
    optimizer: Optimizer = AdamW(name="adamw")
    schedule: Schedule = Constant()

    batch: Count = 64
    """Samples of a step, over all workers."""
    epochs: Count = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Scale the gradient down to this 2-norm where it is longer."""

    workers: Annotated[int, Field(ge=1, le=256)] = 1
    shards: Annotated[int, Field(ge=1, le=4096)] = 8
    """Shards that a step is cut into: a constant of the job, never read off the machine."""
    shares: tuple[int, ...] | None = None
    """Shards of each worker, where they are to be uneven."""
    numerics: Literal["exact", "fast"] = "exact"
    """`exact`: the same bits whatever the workers. `fast`: a worker's shards are one batch."""
    placement: Literal["private", "arena"] = "private"
    """Where a worker's replica lies: in its own memory, or in the arena, which outlives it."""
    threads_per_worker: Count = 1
    """Threads of a worker's kernels; part of what makes the bits."""
    prefetch: Annotated[int, Field(ge=0, le=64)] = 2
    """Shards that a worker reads ahead."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """How long workers wait for each other before they give up, seconds."""

    checkpoint: Checkpoints = Checkpoints()

    FREE_ON_RESUME: ClassVar[frozenset[str]] = frozenset(
        {"workers", "shares", "placement", "prefetch", "timeout_s", "checkpoint"}
    )

    def plan(self) -> Plan:
        """Which worker computes which shards.

        Raises:
            JobError: The workers cannot share the shards.
        """
        if self.shares is None:
            return Plan.even(self.shards, self.workers)
        return Plan.of_shares(self.shares, self.shards, self.workers)

    def lineage(self) -> dict[str, Any]:
        """The keys that decide the weights, as plain data."""
        free = set(self.FREE_ON_RESUME)
        if self.numerics == "fast":
            free -= {"workers", "shares"}
        return self.model_dump(mode="json", exclude=free)
