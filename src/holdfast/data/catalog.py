"""From a job's data to data sets."""

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
from holdfast.data.formats.text import Windows, split_windows, windows
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
        JobError: They are absent, damaged, or not what the job says.
    """
    with _readable():
        return _build(spec)


def build_text(spec: Text | SyntheticText) -> tuple[Windows, Windows]:
    """The text of a job, for training and for the test.

    Raises:
        JobError: It cannot be read, or is too short.
    """
    with _readable():
        match spec:
            case Text():
                return windows(spec.path, spec.length)
            case SyntheticText():
                return split_windows(synthetic_text(spec.size), spec.length, spec.name)


@contextmanager
def _readable() -> Iterator[None]:
    """Name what may not be looked at, wherever that turns up."""
    try:
        yield
    except PermissionError as error:
        raise JobError(f"{error.filename}: {error.strerror}; let it be read") from None


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
    files, read = matching(pattern), _READERS[spec.name]
    return SampleSource(
        files=files, blocks=lambda: chain.from_iterable(read(file, spec) for file in files)
    )


def _splits(
    spec: ImageFolder | Records, training: SampleSource, test: SampleSource | None, classes: int
) -> Splits:
    """Data sets over sources; without one for the test, a part of the other is kept for it."""

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
        found = cached(spec.cache, spec.name, settings, sources, measure)
        samples, scale = found.samples, found.scale
    learned, measured = samples["training"], samples.get("test", samples["training"])
    if measured.x.shape[1:] != learned.x.shape[1:]:
        raise JobError(
            f"{spec.path}: samples for training are of shape {list(learned.x.shape[1:])} and for "
            f"the test {list(measured.x.shape[1:])}; make them alike"
        )
    channels, height, width = learned.x.shape[1:]
    if spec.augment and height * width == 1:
        raise JobError("data.augment is for images, and these are vectors; leave it out")
    training_rows, test_rows = rows(samples)
    return Splits(
        training=Images(
            learned,
            rows=training_rows,
            scale=scale,
            shift=height // 8 * spec.augment,
            mirror=spec.augment,
        ),
        test=Images(measured, rows=test_rows, scale=scale),
        shape=(channels, height, width),
        classes=classes,
    )
