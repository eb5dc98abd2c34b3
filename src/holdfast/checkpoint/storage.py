"""Storage: where the checkpoints of a run are kept.

A checkpoint is a named group of files, each written as a whole and never changed. It is written as
a draft, and publishing the draft gives it its final name. An object store can do the same with the
files under unique keys and one small object for each name, whose conditional put publishes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from holdfast.checkpoint.names import is_checkpoint
from holdfast.errors import CheckpointError
from holdfast.linux.files import read_at, sync_directory, write_synced


class Storage(Protocol):
    """Named groups of files. Every method raises OSError if the storage cannot be reached."""

    def names(self) -> list[str]:
        """The names of all groups, in any order; drafts included."""
        ...

    def location(self, name: str) -> str:
        """Location of a group, for people."""
        ...

    def size(self, name: str, file: str) -> int | None:
        """The size of a file in bytes; None if there is no such file.

        Raises:
            OSError: Nothing can be read there now.
        """
        ...

    def read(
        self, name: str, file: str, start: int, into: memoryview, *, cached: bool = True
    ) -> None:
        """Fill `into` with the bytes of a file from `start` on.

        Args:
            name: The group.
            file: Its file.
            start: First byte to read.
            into: Takes the bytes.
            cached: True if a copy in memory may serve; if not, the medium itself is read.

        Raises:
            CheckpointError: The file ends too early.
        """
        ...

    def write_synced(self, name: str, file: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Write a new file durably, with its group if that is new; returns its size in bytes.

        A piece may change once the next one is asked for.
        """
        ...

    def publish(self, draft: str, name: str) -> None:
        """Give a draft its final name, durably: after a crash it has one name or the other, and
        all of its files. There must be no group of that name.
        """
        ...

    def rename(self, name: str, to: str) -> None:
        """Give a group another name, at once."""
        ...

    def delete(self, name: str) -> None:
        """Delete a group. A crash may leave some of its files under its name."""
        ...


class DirectoryStorage:
    """Groups are directories below one directory, on a disk or a network file system.

    Args:
        root: The directory; it need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Implements `Storage`."""
        try:
            return [path.name for path in self.root.iterdir()]
        except FileNotFoundError:
            return []

    def location(self, name: str) -> str:
        """Implements `Storage`."""
        return str(self.root / name)

    def size(self, name: str, file: str) -> int | None:
        """Implements `Storage`; a pipe is no file, and a mount leaves a directory in its place."""
        path = self.root / name / file
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(
        self, name: str, file: str, start: int, into: memoryview, *, cached: bool = True
    ) -> None:
        """Implements `Storage`."""
        path = self.root / name / file
        missing = len(into) - read_at(path, start, into, cached=cached)
        if missing:
            raise CheckpointError(f"{path} is truncated: {missing} bytes are missing")

    def write_synced(self, name: str, file: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Implements `Storage`; the file's name is durable once the draft is published."""
        path = self.root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # an interrupted write may have left a part of it
        return write_synced(path, pieces)

    def publish(self, draft: str, name: str) -> None:
        """Implements `Storage`; `latest` names the newest one for people, and nothing reads it."""
        # The draft's files are durable before its name is: no crash leaves a name without them.
        sync_directory(self.root / draft)
        (self.root / draft).rename(self.root / name)
        sync_directory(self.root)
        if is_checkpoint(name):
            with contextlib.suppress(OSError):  # it is only a hint
                (self.root / "latest").write_text(name + "\n", encoding="utf-8")

    def rename(self, name: str, to: str) -> None:
        """Implements `Storage`."""
        (self.root / name).rename(self.root / to)

    def delete(self, name: str) -> None:
        """Implements `Storage`; of a link, only the link is deleted."""
        path = self.root / name
        is_directory = path.is_dir() and not path.is_symlink()
        shutil.rmtree(path) if is_directory else path.unlink()
