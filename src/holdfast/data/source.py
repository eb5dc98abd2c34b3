"""Source: samples that come from files in blocks, and how they are taken into memory or a file."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from holdfast.data.images import Labels, Pixels, Samples
from holdfast.errors import JobError

Blocks = Iterator[tuple[Pixels, Labels]]
"""Neighbouring samples: images, uint8 or float32, [n, channels, height, width], and classes."""

BLOCK: Final = 512
"""Samples that a source reads at a time."""

_PART: Final = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})(\D.*)?")
"""How the parts of a data set are commonly named: `train-00000-of-00008.parquet`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """Samples in files.

    Attributes:
        files: What is read.
        blocks: Reads it, from the beginning.
    """

    files: tuple[Path, ...]
    blocks: Callable[[], Blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What samples look like.

    Attributes:
        dtype: `uint8` or `float32`.
        shape: Samples, channels, height, width.
        sha256: Digest of the bytes of images and classes.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str


def in_memory(source: SampleSource) -> Samples:
    """All samples of `source`.

    Raises:
        JobError: A file is damaged, or its samples are unlike each other.
    """
    x, y = io.BytesIO(), io.BytesIO()
    form = pour(source, x, y)
    return Samples(
        x=np.frombuffer(x.getbuffer(), form.dtype).reshape(form.shape),
        y=np.frombuffer(y.getbuffer(), np.int64),
        sha256=form.sha256,
    )


def pour(source: SampleSource, x: BinaryIO, y: BinaryIO) -> Form:
    """Write the images of `source` to `x` and the classes to `y`, bare.

    Raises:
        JobError: A file is damaged, or its samples are unlike each other.
        OSError: The disk is full.
    """
    hasher, labels = hashlib.sha256(), list[Labels]()
    first: Pixels | None = None
    for pixels, classes in source.blocks():
        first = pixels[:1] if first is None else first
        if (pixels.dtype, pixels.shape[1:]) != (first.dtype, first.shape[1:]):
            raise JobError(
                f"{source.files[0]} and the files with it hold samples of {first.dtype} "
                f"{list(first.shape[1:])} and of {pixels.dtype} {list(pixels.shape[1:])}; "
                "make them alike"
            )
        block = np.ascontiguousarray(pixels).reshape(-1).view(np.uint8).data
        x.write(block)
        hasher.update(block)
        labels.append(classes)
    if first is None:
        raise JobError(f"{source.files[0]} holds no samples")
    numbers = np.concatenate(labels)
    y.write(numbers.data)
    hasher.update(numbers.data)
    return Form(
        dtype=str(first.dtype),
        shape=(len(numbers), *first.shape[1:]),
        sha256=hasher.hexdigest(),
    )


def matching(pattern: Path) -> tuple[Path, ...]:
    """The file `pattern`, or the files that it names in the order of their names.

    Raises:
        JobError: There are none, or a part is missing of files called `…-00000-of-00008…`.
    """
    if pattern.is_dir():
        raise JobError(f"{pattern} is a folder; name its files with a pattern such as {pattern}/*")
    if pattern.exists():
        return (pattern,)
    found = tuple(sorted(pattern.parent.glob(pattern.name)))
    if not found:
        raise JobError(f"{pattern} names no file; set data.path to one, or to a pattern")
    there = {path.name for path in found}
    parts = [part for name in sorted(there) if (part := _PART.fullmatch(name))]
    groups = {(part[1], len(part[2]), part[3], part[4] or "") for part in parts}
    for name, digits, total, rest in sorted(groups):
        for number in range(int(total)):
            sibling = f"{name}-{number:0{digits}}-of-{total}{rest}"
            if sibling not in there:
                raise JobError(
                    f"{pattern.with_name(sibling)} is missing beside other parts of {total}; "
                    "fetch it too"
                )
    return found


def images_of(
    values: npt.NDArray[Any],
    shape: tuple[int, int, int] | None,
    layout: str,
    where: str,
) -> Pixels:
    """Stored samples as images, uint8 or float32, [n, channels, height, width].

    Args:
        values: Numbers, [n, …]: scalars, vectors, or images of two or three dimensions.
        shape: The dimensions of an image that is stored flat, or None.
        layout: The order of an image's three dimensions, `hwc` or `chw`.
        where: What an error calls them.

    Raises:
        JobError: They are no numbers, not finite, or not of such a shape.
    """
    if values.dtype.kind not in "biuf":
        raise JobError(f"{where}: features must be numbers, not {values.dtype}")
    if values.dtype != np.uint8:
        with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused
            values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise JobError(f"{where}: features must be finite in float32; mend or remove them")
    if shape is not None:
        if values[0].size != np.prod(shape):
            raise JobError(
                f"{where}: a sample has {values[0].size} numbers, which data.shape={list(shape)} "
                "does not fit"
            )
        values = values.reshape(len(values), *shape)
    match values.ndim:
        case 1 | 2:
            return values.reshape(len(values), -1, 1, 1)
        case 3:
            return values[:, None]
        case 4:
            return values if layout == "chw" else values.transpose(0, 3, 1, 2)
        case _:
            raise JobError(
                f"{where}: a sample of shape {list(values.shape[1:])} is neither a vector nor an "
                "image; set data.features to another"
            )
