"""Published data sets: their files, where to download them from, and their local directories.

They are kept in the directory `HOLDFAST_DATA`, `~/.cache/holdfast` by default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import JobError


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A published file and its digest."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Published:
    """The files of a data set, below one address."""

    site: str
    files: tuple[PublishedFile, ...]

    @property
    def addresses(self) -> list[str]:
        return [f"{self.site}/{file.name}" for file in self.files]


PUBLISHED: Final = {
    "mnist": Published(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            PublishedFile(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            PublishedFile(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            PublishedFile(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            PublishedFile(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "cifar10": Published(
        "https://www.cs.toronto.edu/~kriz",
        (
            PublishedFile(
                "cifar-10-python.tar.gz",
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
    ),
    "cifar100": Published(
        "https://www.cs.toronto.edu/~kriz",
        (
            PublishedFile(
                "cifar-100-python.tar.gz",
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    ),
}


def directory(name: str) -> Path:
    """The directory of a downloaded data set."""
    root = os.environ.get("HOLDFAST_DATA") or "~/.cache/holdfast"
    return Path(root).expanduser() / name


def located(name: str, path: Path | None) -> Path:
    """Directory to read a data set from: `path`, or the directory it was downloaded to.

    Returns:
        A directory; the file itself for a downloaded data set of one file.

    Raises:
        JobError: `path` is None and nothing was downloaded, or `path` does not exist.
    """
    if path is not None and path.exists():
        return path
    if path is not None:
        raise JobError(f"{path} does not exist; {advice(name)}")
    kept = directory(name)
    files = PUBLISHED[name].files
    if not all((kept / file.name).is_file() for file in files):
        raise JobError(f"{name} is not downloaded yet; {advice(name)}")
    return kept / files[0].name if len(files) == 1 else kept


def advice(name: str) -> str:
    """Remedy if the data set, or a part of it, is missing."""
    return (
        f"add --download, or download {', '.join(PUBLISHED[name].addresses)} to "
        f"{directory(name)}, or set data.path to its directory"
    )
