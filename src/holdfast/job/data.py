"""Data sets that a job can name. `holdfast.data.catalog` reads them.

Names of synthetic data begin with `synthetic-`, and every result states the name of its data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from holdfast.job.part import Count, Spec

Classes = Annotated[int, Field(ge=2)]


class DigitsData(Spec):
    """scikit-learn's handwritten digits: 1,797 grey images of 8x8, in 10 classes."""

    name: Literal["digits"]
    augment: bool = False
    """Shift each training image by up to 1 pixel in both directions, differently every epoch."""


class SyntheticImages(Spec):
    """Synthetic images from a seed: a pattern per class, and noise."""

    name: Literal["synthetic-images"]
    size: Count = 2048
    channels: Count = 3
    height: Count = 32
    classes: Classes = 10
    augment: bool = False
    """Flip each training image horizontally with probability 0.5, differently every epoch."""


class Mnist(Spec):
    """MNIST in its published form, or another data set in files of the same names and shape."""

    name: Literal["mnist"]
    path: Path | None = None
    """The directory of the four published files; by default the one that `--download` uses."""
    augment: bool = False
    """Shift each training image by up to 2 pixels in both directions, differently every epoch."""


class Cifar(Spec):
    """CIFAR-10 or CIFAR-100 in its published form."""

    name: Literal["cifar10", "cifar100"]
    path: Path | None = None
    """The published directory or its tar.gz; by default the one that `--download` downloads."""
    augment: bool = True
    """Shift each training image by up to 4 pixels and flip it horizontally with probability 0.5,
    differently every epoch."""


class ImageFolder(Spec):
    """PNG and JPEG files, one folder per class."""

    name: Literal["image-folder"]
    path: Path
    """The folder with `train/CLASS/` and `test/CLASS/`; or with `CLASS/`, of which a tenth forms
    the test set."""
    height: Count = 64
    """Height and width, in pixels, to which images are scaled and cropped."""
    augment: bool = True
    """Shift each training image by up to an eighth of its height and flip it horizontally with
    probability 0.5."""
    cache: Path | None = None
    """Directory for the decoded images, which all workers map into memory."""


def _are_names(given: object) -> object:
    """Refuse what is neither a name nor a list of names."""
    names = given if isinstance(given, list | tuple) else [given]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"should be a name or a list of names, not {given!r:.100}")
    return given


class Records(Spec):
    """Samples in the records of HDF5, Parquet or TFRecord files."""

    name: Literal["hdf5", "parquet", "tfrecord"]
    path: Path
    """A file, or a pattern such as `data/train-*.parquet`."""
    test_path: Path | None = None
    """The same for the test set; by default a tenth of the samples."""
    features: Annotated[str | tuple[str, ...], BeforeValidator(_are_names)]
    """Name of the inputs: a data set of the file (HDF5), a column or several columns of numbers
    (Parquet), or a feature (TFRecord)."""
    labels: str
    """Name of the classes, integers from 0."""
    classes: Classes
    shape: tuple[Count, Count, Count] | None = None
    """Dimensions of images that are stored flat, in the order of `layout`."""
    layout: Literal["hwc", "chw"] = "hwc"
    """Order of an image's dimensions: `hwc` (height, width, channels) or `chw`."""
    height: Count | None = None
    """Height and width, in pixels, to which PNG and JPEG images are scaled and cropped."""
    augment: bool = False
    """Shift each training image by up to an eighth of its height and flip it horizontally with
    probability 0.5."""
    cache: Path | None = None
    """Directory for the decoded samples, which all workers map into memory."""


class Text(Spec):
    """Text as bytes."""

    name: Literal["text"]
    path: Path | None = None
    """A file or folder; by default the language reference that comes with Python."""
    length: Count = 64
    """Bytes of a sample."""


class SyntheticText(Spec):
    """Synthetic text from a seed: a Markov chain of order 2."""

    name: Literal["synthetic-text"]
    size: Count = 262_144
    """Bytes of the text."""
    length: Count = 64
    """Bytes of a sample."""


LabelledData = DigitsData | SyntheticImages | Mnist | Cifar | ImageFolder | Records
TextData = Text | SyntheticText

Data = Annotated[LabelledData | TextData, Field(discriminator="name")]
