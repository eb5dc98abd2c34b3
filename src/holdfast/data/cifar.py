"""CIFAR-10 and CIFAR-100 as published: the "python version", a directory or its tar.gz.

The published files are pickles, and a pickle is a program. They are read by an unpickler that knows
just what these files need and builds nothing but lists, bytes, strings, numbers, and arrays of
bytes: what it is asked to call instead of them is refused.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from holdfast.data.images import Images
from holdfast.errors import JobError

SITE: Final = "https://www.cs.toronto.edu/~kriz"

_FILES: Final = {
    "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], b"labels"),
    "cifar100": (["train"], ["test"], b"fine_labels"),
}
_MEAN: Final = (0.4914, 0.4822, 0.4465)
_DEVIATION: Final = (0.2470, 0.2435, 0.2616)

Bytes = npt.NDArray[np.uint8]


def cifar(name: str, path: Path | None, *, augment: bool) -> tuple[Images, Images]:
    """Training and test images, float32[n, 3, 32, 32], each colour standardised.

    Args:
        name: `cifar10` or `cifar100`.
        path: The published directory, or the tar.gz that holds it.
        augment: Shift training images by up to 4 pixels and mirror half of them.

    Raises:
        JobError: The files are absent, damaged or not CIFAR.
    """
    if path is None:
        archive = name.replace("cifar", "cifar-") + "-python.tar.gz"
        raise JobError(
            f"{name} is read from files: fetch {SITE}/{archive} and set data.path to where it lies"
        )
    training, test, key = _FILES[name]
    train_x, train_y = _images(path, training, key)
    test_x, test_y = _images(path, test, key)
    return Images(train_x, train_y, shift=4 * augment, mirror=augment), Images(test_x, test_y)


def _images(path: Path, names: list[str], key: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = [], list[int]()
    for name in names:
        where = f"{path}/{name}"
        batch = _unpickle(_read(path, name), where)
        rows = _rows(batch, key, where)
        pixels.append(rows)
        labels += batch[key]
    x = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32).to(torch.float32) / 255
    mean, deviation = (torch.tensor(values)[None, :, None, None] for values in (_MEAN, _DEVIATION))
    return (x - mean) / deviation, torch.tensor(labels)


def _rows(batch: Any, key: bytes, where: str) -> Bytes:
    """The pixels of one file, uint8[n, 3072], once they are known to match its labels."""
    try:
        rows, labels = batch[b"data"], batch[key]
    except (KeyError, TypeError):
        raise JobError(f"{where} is not a CIFAR batch; fetch the data set anew") from None
    if not isinstance(rows, _Array) or not all(type(label) is int for label in labels):
        raise JobError(f"{where} is not a CIFAR batch; fetch the data set anew")
    found = rows.as_bytes(where)
    if found.shape != (len(labels), 3072):
        raise JobError(
            f"{where} holds {len(labels)} labels and pixels of shape {found.shape}; "
            "fetch the data set anew"
        )
    return found


def _read(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            return (path / name).read_bytes()
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                if Path(member.name).name == name and member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None
                    return file.read()
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise JobError(
            f"{path}: reading {name} failed: {error}; fetch the data set anew or set data.path"
        ) from None
    raise JobError(f"{path} holds no {name}; set data.path to the published archive or directory")


class _Dtype:
    """Stands for a numpy dtype: its code, and no more."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order does not matter for single bytes."""


class _Array:
    """Stands for a numpy array until its parts have been looked at."""

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
        raise JobError(f"{where} holds an array that is not of bytes; fetch the data set anew")


class _Unpickler(pickle.Unpickler):
    """Builds the two stand-ins above, and refuses everything else."""

    _KNOWN: Final = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Raises: UnpicklingError: The file asks for something that CIFAR does not need."""
        known = self._KNOWN.get((module_name, global_name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")
        return known


def _unpickle(data: bytes, where: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001  # a damaged pickle may raise anything
        raise JobError(f"{where} is damaged: {error}; fetch the data set anew") from None
