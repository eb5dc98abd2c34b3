"""The data sets that a job can name. Where each is read: `holdfast.data.catalog`.

Made-up data have names that begin with `synthetic-`, and every result carries the name of its data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from holdfast.job.part import Count, Spec

Classes = Annotated[int, Field(ge=2)]


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
    classes: Classes = 10
    augment: bool = False
    """Mirror every other training image, chosen anew in every epoch."""


class Mnist(Spec):
    """MNIST in its published form, or another data set in files of the same names and shape."""

    name: Literal["mnist"]
    path: Path | None = None
    """The directory of the four published files; by default where `--download` puts them."""
    augment: bool = False
    """Shift every training image by up to 2 pixels each way, anew in every epoch."""


class Cifar(Spec):
    """CIFAR-10 or CIFAR-100 in its published form."""

    name: Literal["cifar10", "cifar100"]
    path: Path | None = None
    """The published directory, or the tar.gz that holds it; by default where `--download` puts
    it."""
    augment: bool = True
    """Shift training images by up to 4 pixels and mirror half of them, anew in every epoch."""


class ImageFolder(Spec):
    """PNG and JPEG files, a folder a class."""

    name: Literal["image-folder"]
    path: Path
    """Holds `train/CLASS/` and `test/CLASS/`; or `CLASS/`, of which a tenth is kept for the
    test."""
    height: Count = 64
    """Images are scaled and cut to so many pixels each way."""
    augment: bool = True
    """Shift training images by up to an eighth of their height and mirror half of them."""
    cache: Path | None = None
    """A directory in which the decoded images are kept, and mapped by all workers."""


class Records(Spec):
    """Samples in the records of HDF5, Parquet or TFRecord files."""

    name: Literal["hdf5", "parquet", "tfrecord"]
    path: Path
    """A file, or a pattern such as `data/train-*.parquet`."""
    test_path: Path | None = None
    """The same for the test; by default a tenth of the samples is kept for it."""
    features: str | tuple[str, ...]
    """Where the inputs are: a data set of the file, a column (or several columns of numbers), or a
    feature."""
    labels: str
    """Where the classes are, whole numbers from 0."""
    classes: Classes
    shape: tuple[Count, Count, Count] | None = None
    """The dimensions of an image that is stored flat, in the order of `layout`."""
    layout: Literal["hwc", "chw"] = "hwc"
    """The order of an image's dimensions: height, width, channels, or channels first."""
    height: Count | None = None
    """Images stored as PNG or JPEG are scaled and cut to so many pixels each way."""
    augment: bool = False
    """Shift training images by up to an eighth of their height and mirror half of them."""
    cache: Path | None = None
    """A directory in which the decoded samples are kept, and mapped by all workers."""


class Text(Spec):
    """A text, read as bytes."""

    name: Literal["text"]
    path: Path | None = None
    """A file or folder; by default the language reference that Python carries."""
    length: Count = 64
    """Bytes of context that a sample gives."""


class SyntheticText(Spec):
    """A text made up from a seed, in which every two letters say what is likely to follow."""

    name: Literal["synthetic-text"]
    size: Count = 262_144
    """Bytes."""
    length: Count = 64
    """Bytes of context that a sample gives."""


LabelledData = DigitsData | SyntheticImages | Mnist | Cifar | ImageFolder | Records
TextData = Text | SyntheticText

Data = Annotated[LabelledData | TextData, Field(discriminator="name")]
