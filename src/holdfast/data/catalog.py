"""Catalog: builds the data sets that a job names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import torch

from holdfast.data.cache import cached
from holdfast.data.dataset import generator_for
from holdfast.data.formats import hdf5, parquet, tfrecord
from holdfast.data.formats.cifar import cifar
from holdfast.data.formats.folder import image_folder
from holdfast.data.formats.idx import mnist
from holdfast.data.formats.text import Windows, read, split_windows, windows
from holdfast.data.images import Images, Samples, Scale, Splits, split
from holdfast.data.permutation import Indices, Permutation
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


def digits(*, augment: bool) -> Splits:
    """1,437 training and 360 test images, values in 0..1."""
    # Read as a file: importing scikit-learn takes a second.
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    x = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32) / 16
    y = table[:, -1]
    order = Permutation(len(y), b"digits: training and test").take(0, len(y))
    train = order[360:]
    test = order[:360]
    return Splits(
        training=Images(Samples.of(x[train], y[train]), shift=int(augment)),
        test=Images(Samples.of(x[test], y[test])),
        shape=(1, 8, 8),
        classes=10,
    )


LETTERS: Final = b"adeinrt "

NEXT_LETTER_PROBABILITIES: Final = (0.8, 0.15, 0.05)
"""Probabilities of the letters that may follow two others."""


def synthetic_images(spec: SyntheticImages) -> Splits:
    """`size` training images and a quarter as many test images: a pattern per class, and noise."""
    shape = (spec.channels, spec.height, spec.height)
    patterns = torch.randn(spec.classes, *shape, generator=generator_for("patterns"))

    def draw(name: str, count: int) -> Samples:
        generator = generator_for(name)
        y = torch.randint(spec.classes, (count,), generator=generator)
        x = patterns[y] + 2 * torch.randn(count, *shape, generator=generator)
        return Samples.of(x.numpy(), y.numpy())

    return Splits(
        training=Images(draw("train", spec.size), mirror=spec.augment),
        test=Images(draw("test", max(1, spec.size // 4))),
        shape=shape,
        classes=spec.classes,
    )


def synthetic_text(size: int) -> bytes:
    """`size` letters of a Markov chain of order 2.

    Three letters, drawn once, may follow any two. A model with a context of two letters can reach
    0.88 bits per letter; one with less context cannot come close.
    """
    generator = generator_for("synthetic text")
    count = len(LETTERS)
    followers = torch.rand(count * count, count, generator=generator).argsort(1)[:, :3].tolist()
    steps = torch.tensor(NEXT_LETTER_PROBABILITIES).cumsum(0)[:-1].tolist()
    before = 0
    last = 0
    text = bytearray()
    for chance in torch.rand(size, generator=generator).tolist():
        before, last = last, followers[before * count + last][bisect_right(steps, chance)]
        text.append(LETTERS[last])
    return bytes(text)
