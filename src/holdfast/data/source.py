"""Source: samples that are read from files in blocks, into memory or into a file."""

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
"""Samples per block that a source reads."""

_PART: Final = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})(\D.*)?")
"""Common form of the names of a data set's parts: `train-00000-of-00008.parquet`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """Samples in files.

    Attributes:
        files: The files that are read.
        blocks: Reads them, from the beginning.
    """

    files: tuple[Path, ...]
    blocks: Callable[[], Blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFormat:
    """Type and shape of samples.

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
        JobError: A file is damaged, or its samples differ in type or shape.
    """
    x = io.BytesIO()
    y = io.BytesIO()
    form = write_samples(source, x, y)
    return Samples(
        x=np.frombuffer(x.getbuffer(), form.dtype).reshape(form.shape),
        y=np.frombuffer(y.getbuffer(), np.int64),
        sha256=form.sha256,
    )


def write_samples(source: SampleSource, x: BinaryIO, y: BinaryIO) -> SampleFormat:
    """Write the images of `source` to `x` and the classes to `y`, without headers.

    Raises:
        JobError: A file is damaged, or its samples differ in type or shape.
        OSError: The disk is full.
    """
    hasher = hashlib.sha256()
    labels = list[Labels]()
    first: Pixels | None = None
    for pixels, classes in source.blocks():
        first = pixels[:1] if first is None else first
        if (pixels.dtype, pixels.shape[1:]) != (first.dtype, first.shape[1:]):
            raise JobError(
                f"{source.files[0]} and the other files hold samples of {first.dtype} "
                f"{list(first.shape[1:])} and of {pixels.dtype} {list(pixels.shape[1:])}; "
                "give all of them the same type and shape"
            )
        block = np.ascontiguousarray(pixels).reshape(-1).view(np.uint8).data
        x.write(block)
        hasher.update(block)
        labels.append(classes)
    if first is None:
        raise JobError(f"{source.files[0]} contains no samples")
    numbers = np.concatenate(labels)
    y.write(numbers.data)
    hasher.update(numbers.data)
    return SampleFormat(
        dtype=str(first.dtype),
        shape=(len(numbers), *first.shape[1:]),
        sha256=hasher.hexdigest(),
    )


def matching(pattern: Path) -> tuple[Path, ...]:
    """The file `pattern`, or the files that match it, sorted by name.

    Raises:
        JobError: There are none, or a part of files named `…-00000-of-00008…` is missing.
    """
    if pattern.is_dir():
        raise JobError(f"{pattern} is a folder; set a pattern for its files, such as {pattern}/*")
    if pattern.exists():
        return (pattern,)
    files = tuple(sorted(pattern.parent.glob(pattern.name)))
    if not files:
        raise JobError(f"{pattern} matches no file; set data.path to a file or a pattern")
    there = {path.name for path in files}
    parts = [part for name in sorted(there) if (part := _PART.fullmatch(name))]
    groups = {(part[1], len(part[2]), part[3], part[4] or "") for part in parts}
    for name, digits, total, rest in sorted(groups):
        for number in range(int(total)):
            sibling = f"{name}-{number:0{digits}}-of-{total}{rest}"
            if sibling not in there:
                raise JobError(
                    f"{pattern.with_name(sibling)} is missing, one of {total} parts; "
                    "download it too"
                )
    return files


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
        where: Their name in errors.

    Raises:
        JobError: They are not numbers, not finite, or of another shape.
    """
    if values.dtype.kind not in "biuf":
        raise JobError(f"{where}: features must be numbers, not {values.dtype}")
    if values.dtype != np.uint8:
        with np.errstate(over="ignore"):  # too large a number becomes infinite and is refused
            values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise JobError(f"{where}: features must be finite in float32; fix or remove them")
    if shape is not None:
        if values[0].size != np.prod(shape):
            raise JobError(
                f"{where}: a sample has {values[0].size} numbers, which does not fit "
                f"data.shape={list(shape)}"
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
