"""Catalog: builds the data sets that a job names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from holdfast.data.cache import cached
from holdfast.data.formats import hdf5, parquet, tfrecord
from holdfast.data.formats.cifar import cifar
from holdfast.data.formats.digits import digits
from holdfast.data.formats.folder import image_folder
from holdfast.data.formats.idx import mnist
from holdfast.data.formats.synthetic import synthetic_images, synthetic_text
from holdfast.data.formats.text import Windows, read, split_windows, windows
from holdfast.data.images import Images, Samples, Scale, Splits, split
from holdfast.data.permutation import Indices
from holdfast.data.source import Blocks, SampleSource, in_memory, matching
from holdfast.errors import JobError
from holdfast.job.data import (
    Cifar,
    DigitsData,
    ImageFolder,
    LabelledData,
    Mnist,
    Records,
    SyntheticImages,
    SyntheticText,
    Text,
)

_READERS: Final[Mapping[str, Callable[[Path, Records], Blocks]]] = {
    "hdf5": hdf5.blocks,
    "parquet": parquet.blocks,
    "tfrecord": tfrecord.blocks,
}


def build(spec: LabelledData) -> Splits:
    """The labelled data of a job.

    Raises:
        JobError: They are missing, damaged, or not what the job says.
    """
    with _readable():
        return _build(spec)


def build_text(spec: Text | SyntheticText) -> tuple[Windows, Windows]:
    """The text of a job: its training part and its test part.

    Raises:
        JobError: It cannot be read, or is too short.
    """
    with _readable():
        match spec:
            case Text():
                return windows(spec.path, spec.length)
            case SyntheticText():
                return split_windows(synthetic_text(spec.size), spec.length, spec.name)


def read_text(spec: Text | SyntheticText) -> bytes:
    """The text of a job as bytes.

    Raises:
        JobError: It cannot be read.
    """
    with _readable():
        return read(spec.path) if isinstance(spec, Text) else synthetic_text(spec.size)


@contextmanager
def _readable() -> Iterator[None]:
    """Report a file that this user may not read as a mistake of the job."""
    try:
        yield
    except PermissionError as error:
        raise JobError(f"{error.filename}: {error.strerror}; make it readable") from None


def _build(spec: LabelledData) -> Splits:
    match spec:
        case DigitsData():
            return digits(augment=spec.augment)
        case SyntheticImages():
            return synthetic_images(spec)
        case Mnist():
            return mnist(spec)
        case Cifar():
            return cifar(spec)
        case ImageFolder():
            training, test, classes = image_folder(spec.path, spec.height)
            return _splits(spec, training, test, len(classes))
        case Records():
            test = None if spec.test_path is None else _records(spec, spec.test_path)
            return _splits(spec, _records(spec, spec.path), test, spec.classes)


def _records(spec: Records, pattern: Path) -> SampleSource:
    files = matching(pattern)
    read = _READERS[spec.name]
    return SampleSource(
        files=files, blocks=lambda: chain.from_iterable(read(file, spec) for file in files)
    )


def _splits(
    spec: ImageFolder | Records, training: SampleSource, test: SampleSource | None, classes: int
) -> Splits:
    """Data sets over sources. Without a test source, a part of the training source is the test."""

    def rows(samples: Mapping[str, Samples]) -> tuple[Indices, Indices]:
        sizes = [len(part.y) for part in samples.values()]
        if test is None:
            return split(sizes[0], str(spec.path))
        return np.arange(sizes[0]), np.arange(sizes[1])

    def measure(samples: Mapping[str, Samples]) -> Scale:
        return Scale.of(samples["training"].x, rows(samples)[0])

    sources = {"training": training} if test is None else {"training": training, "test": test}
    if spec.cache is None:
        samples = {name: in_memory(source) for name, source in sources.items()}
        scale = measure(samples)
    else:
        settings = spec.model_dump(mode="json", exclude={"path", "test_path", "cache", "augment"})
        entry = cached(spec.cache, spec.name, settings, sources, measure)
        samples = entry.samples
        scale = entry.scale
    train_samples = samples["training"]
    test_samples = samples.get("test", samples["training"])
    if test_samples.x.shape[1:] != train_samples.x.shape[1:]:
        raise JobError(
            f"{spec.path}: training samples have the shape {list(train_samples.x.shape[1:])}, test "
            f"samples {list(test_samples.x.shape[1:])}; give both the same shape"
        )
    channels, height, width = train_samples.x.shape[1:]
    if spec.augment and height * width == 1:
        raise JobError("data.augment needs images, but these samples are vectors; remove it")
    training_rows, test_rows = rows(samples)
    return Splits(
        training=Images(
            train_samples,
            rows=training_rows,
            scale=scale,
            shift=height // 8 * spec.augment,
            mirror=spec.augment,
        ),
        test=Images(test_samples, rows=test_rows, scale=scale),
        shape=(channels, height, width),
        classes=classes,
    )
