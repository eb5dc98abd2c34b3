"""Image folders: PNG and JPEG files, one folder per class."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from holdfast.data.formats.pictures import decoded
from holdfast.data.source import BLOCK, Blocks, SampleSource
from holdfast.errors import JobError

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg"})

Labelled = tuple[Path, int]


def image_folder(path: Path, height: int) -> tuple[SampleSource, SampleSource | None, list[str]]:
    """The images below `path`, scaled and cropped to `height`.

    Returns:
        The training images; the test images, or None if `path` has no `test/`; and the names of the
        classes, sorted.

    Raises:
        JobError: There is no such folder, or its layout is wrong.
    """
    parts = {name for name in ("train", "test") if (path / name).is_dir()}
    if len(parts) == 1:
        raise JobError(f"{path} has only {parts.pop()}/; it needs train/ and test/, or neither")
    training = path / "train" if parts else path
    classes = [folder.name for folder in _visible(training) if folder.is_dir()]
    if len(classes) < 2:
        raise JobError(
            f"{training} has {len(classes)} class folders and needs at least 2; set data.path to "
            "the folder that has them"
        )
    test = _source(path / "test", classes, height) if parts else None
    return _source(training, classes, height), test, classes


def _source(root: Path, classes: list[str], height: int) -> SampleSource:
    folders = _visible(root)
    if not folders:
        raise JobError(f"{root} has no class folders; add them, or remove it")
    labelled = [
        (file, _class_of(folder, classes)) for folder in folders for file in _pictures(folder)
    ]
    return SampleSource(
        files=tuple(file for file, _ in labelled), blocks=lambda: _blocks(labelled, height)
    )


def _blocks(labelled: list[Labelled], height: int) -> Blocks:
    def read(entry: Labelled) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        path = entry[0]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise JobError(f"{path}: {error.strerror}; fix or remove it") from None
        return decoded(data, height, str(path))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(labelled), BLOCK):
            block = labelled[start : start + BLOCK]
            yield np.stack(list(pool.map(read, block))), np.array([label for _, label in block])


def _class_of(folder: Path, classes: list[str]) -> int:
    if folder.name not in classes:
        raise JobError(f"{folder} is a class that is missing in train/; add it there or remove it")
    return classes.index(folder.name)


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise JobError(f"{folder} is not a folder, but is in a folder of classes; remove it")
    files = _visible(folder)
    for file in files:
        if file.suffix.lower() not in _SUFFIXES or not file.is_file():
            raise JobError(f"{file} is not a .png or .jpg file; convert or remove it")
    if not files:
        raise JobError(f"{folder} contains no images; add some, or remove it")
    return files


def _visible(folder: Path) -> list[Path]:
    """The entries of a folder, sorted, without hidden ones."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise JobError(f"{folder}: {error.strerror}; set data.path to a folder of images") from None
