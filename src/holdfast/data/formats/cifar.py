"""CIFAR-10 and CIFAR-100 as published: the "python version", a directory or its tar.gz.

The published files are pickles, and a pickle is a program. The unpickler here builds only what
these files need (lists, bytes, strings, numbers and arrays of bytes) and refuses any other call.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.data import published
from holdfast.data.images import Images, Labels, Samples, Scale, Splits, checked_labels
from holdfast.errors import JobError
from holdfast.job.data import Cifar

_FILES: Final = {
    "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], b"labels", 10),
    "cifar100": (["train"], ["test"], b"fine_labels", 100),
}

Bytes = npt.NDArray[np.uint8]


def cifar(spec: Cifar) -> Splits:
    """Images of 3x32x32, each channel standardized.

    Raises:
        JobError: The files are missing, damaged or not CIFAR.
    """
    path = published.located(spec.name, spec.path)
    training_files, test_files, key, classes = _FILES[spec.name]
    contents = _read(path, [*training_files, *test_files])

    def samples(names: list[str]) -> Samples:
        batches = [_batch(contents[name], key, classes, f"{path}/{name}") for name in names]
        x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
        return Samples.of(x.reshape(-1, 3, 32, 32), y)

    training = samples(training_files)
    test = samples(test_files)
    scale = Scale.of(training.x, np.arange(len(training.y)))
    return Splits(
        training=Images(training, scale=scale, shift=4 * spec.augment, mirror=spec.augment),
        test=Images(test, scale=scale),
        shape=(3, 32, 32),
        classes=classes,
    )


def _batch(content: bytes, key: bytes, classes: int, where: str) -> tuple[Bytes, Labels]:
    """The pixels of one file, uint8[n, 3072], and its labels, int64[n]."""
    batch = _unpickle(content, where)
    try:
        rows = batch[b"data"]
        labels = batch[key]
    except (KeyError, TypeError):
        raise JobError(f"{where} is not a CIFAR batch; download the data set again") from None
    if not isinstance(rows, _Array) or not all(type(label) is int for label in labels):
        raise JobError(f"{where} is not a CIFAR batch; download the data set again")
    pixels = rows.as_bytes(where)
    if not labels or pixels.shape != (len(labels), 3072):
        raise JobError(
            f"{where} holds {len(labels)} labels and pixels of shape {pixels.shape}; "
            "download the data set again"
        )
    return pixels, checked_labels(np.array(labels), classes, where)


def _read(path: Path, names: list[str]) -> dict[str, bytes]:
    """The contents of the files called `names` below a directory or in an archive."""
    try:
        if path.is_dir():
            return {name: (path / name).read_bytes() for name in names}
        contents = _unpacked(path, names)
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise JobError(
            f"{path}: reading {', '.join(names)} failed: {error}; download the data set "
            "again or set data.path"
        ) from None
    missing = [name for name in names if name not in contents]
    if missing:
        raise JobError(
            f"{path} has no {missing[0]}; set data.path to the published archive or directory"
        )
    return contents


def _unpacked(path: Path, names: list[str]) -> dict[str, bytes]:
    contents = {}
    with gzip.open(path) as whole, tarfile.open(fileobj=whole) as archive:
        for member in archive:
            name = Path(member.name).name
            if name in names and member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                contents[name] = file.read()
        while whole.read(1 << 20):  # to the end, where gzip verifies its checksum
            pass
    return contents


class _Dtype:
    """Stands for a numpy dtype: its code only."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order does not matter for single bytes."""


class _Array:
    """Stands for a numpy array until its parts have been checked."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def as_bytes(self, where: str) -> Bytes:
        match self._state:
            case (_, (int(rows), int(columns)), _Dtype(code="u1" | b"u1"), _, bytes(data)) if (
                len(data) == rows * columns
            ):
                fortran = bool(self._state[3])
                array = np.frombuffer(data, np.uint8)
                return array.reshape((rows, columns), order="F" if fortran else "C").copy()
        raise JobError(f"{where} has an array that is not of bytes; download the data set again")


class _Unpickler(pickle.Unpickler):
    """Builds the two classes above and refuses everything else."""

    _KNOWN: Final = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Raises: UnpicklingError: The file calls something that CIFAR does not need."""
        known = self._KNOWN.get((module_name, global_name))
        if known is None:
            raise pickle.UnpicklingError(f"it calls {module_name}.{global_name}")
        return known


def _unpickle(data: bytes, where: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001  # a damaged pickle may raise anything
        raise JobError(f"{where} is damaged: {error}; download the data set again") from None
