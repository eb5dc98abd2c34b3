"""Published data sets: their files, where to download them from, and their local directories.

They are kept in the directory `HOLDFAST_DATA`, `~/.cache/holdfast` by default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

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


PUBLISHED: Final = TypeAdapter(dict[str, Published]).validate_json(
    Path(__file__).with_suffix(".json").read_bytes()
)


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
