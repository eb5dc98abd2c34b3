"""The data sets that a job can name. Where each is read: `holdfast.data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from holdfast.job.part import Count, Spec


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


Data = Annotated[DigitsData | SyntheticImages | Cifar | Text, Field(discriminator="name")]
