"""IDX: the format of MNIST, a magic number, dimensions, and bytes.

The format is described at the end of http://yann.lecun.com/exdb/mnist/ (LeCun, Cortes, Burges).
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.data import published
from holdfast.data.images import Images, Samples, Scale, Splits, checked_labels
from holdfast.errors import JobError
from holdfast.job.data import Mnist

CLASSES: Final = 10

_BYTES: Final = 0x08
"""The format's code for unsigned bytes, the only one in published data sets."""


def mnist(spec: Mnist) -> Splits:
    """The images of the four published files, standardized.

    Raises:
        JobError: A file is missing, damaged, or does not fit the others.
    """
    path = published.located("mnist", spec.path)
    training = _samples(path, "train")
    test = _samples(path, "t10k")
    height, width = training.x.shape[2:]
    if test.x.shape[2:] != (height, width):
        raise JobError(
            f"{path}: training images are {height}x{width} and test images "
            f"{test.x.shape[2]}x{test.x.shape[3]}; use the files of one data set"
        )
    scale = Scale.of(training.x, np.arange(len(training.y)))
    return Splits(
        training=Images(training, scale=scale, shift=2 * spec.augment),
        test=Images(test, scale=scale),
        shape=(1, height, width),
        classes=CLASSES,
    )


def read(path: Path) -> npt.NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, plain or compressed (.gz).

    Raises:
        JobError: It cannot be read, is not such a file, or has the wrong length.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; {published.advice('mnist')}") from None
    if path.suffix == ".gz":
        data = _decompressed(data, path)
    if len(data) < 4 or data[:3] != bytes([0, 0, _BYTES]):
        raise JobError(f"{path} is not an IDX file of bytes: it starts with {data[:4].hex()}")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise JobError(f"{path} is truncated: its dimensions are missing; download it again")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise JobError(
            f"{path} has {len(data) - start} bytes of data, not {math.prod(shape)}; "
            "download it again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _samples(directory: Path, part: str) -> Samples:
    x, where = _part(directory, f"{part}-images-idx3-ubyte", 3)
    y, labels = _part(directory, f"{part}-labels-idx1-ubyte", 1)
    if len(x) != len(y) or not x.size:
        raise JobError(
            f"{where} has {len(x)} images and {labels.name} {len(y)} labels; download both again"
        )
    return Samples.of(x[:, None], checked_labels(y, CLASSES, str(labels)))


def _part(directory: Path, name: str, dimensions: int) -> tuple[npt.NDArray[np.uint8], Path]:
    """The array of one published file, and its path: the plain file if it exists, or the .gz."""
    path = directory / name
    if not path.exists():
        path = directory / f"{name}.gz"
    array = read(path)
    if array.ndim != dimensions:
        raise JobError(f"{path} has {array.ndim} dimensions, not {dimensions}; download it again")
    return array, path


def _decompressed(data: bytes, path: Path) -> bytes:
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = stream.decompress(data)
    except zlib.error as error:
        raise JobError(f"{path} is damaged: {error}; download it again") from None
    if not stream.eof or stream.unused_data:
        problem = "has data after its end" if stream.eof else "is truncated"
        raise JobError(f"{path} {problem}; download it again")
    return plain
