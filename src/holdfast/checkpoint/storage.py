"""Storage: where the checkpoints of a run are kept.

A checkpoint is a named group of files, each written as a whole and never changed. It is written as
a draft, and publishing the draft gives it its final name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from holdfast.checkpoint.names import is_checkpoint
from holdfast.errors import CheckpointError
from holdfast.linux.files import read_at, sync_directory, write_synced


class Storage:
    """Groups are directories below one directory, on a disk or a network file system. Every method
    raises OSError if that cannot be reached.

    Args:
        root: The directory; it need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """The names of all groups, in any order; drafts included."""
        try:
            return [path.name for path in self.root.iterdir()]
        except FileNotFoundError:
            return []

    def location(self, name: str) -> str:
        """Location of a group, for people."""
        return str(self.root / name)

    def path(self, name: str, file: str) -> Path:
        """Path by which a file is opened."""
        return self.root / name / file

    def size(self, name: str, file: str) -> int | None:
        """The size of a file in bytes; None if there is no such file. A pipe is no file.

        Raises:
            OSError: Nothing can be read there now: a mount leaves a directory in its place.
        """
        path = self.path(name, file)
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
        missing = len(into) - read_at(self.path(name, file), start, into, cached=cached)
        if missing:
            where = f"{self.location(name)}/{file}"
            raise CheckpointError(f"{where} is truncated: {missing} bytes are missing")

    def write_synced(self, name: str, file: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Write a new file durably, with its group if that is new; returns its size in bytes. Its
        name is durable once the draft is published.

        A piece may change once the next one is asked for.
        """
        path = self.path(name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # an interrupted write may have left a part of it
        return write_synced(path, pieces)

    def publish(self, draft: str, name: str) -> None:
        """Give a draft its final name, durably: after a crash it has one name or the other, and
        all of its files. There must be no group of that name.

        `latest` names the newest one for people, and nothing reads it.
        """
        # The draft's files are durable before its name is: no crash leaves a name without them.
        sync_directory(self.root / draft)
        (self.root / draft).rename(self.root / name)
        sync_directory(self.root)
        if is_checkpoint(name):
            with contextlib.suppress(OSError):  # it is only a hint
                (self.root / "latest").write_text(name + "\n", encoding="utf-8")

    def rename(self, name: str, to: str) -> None:
        """Give a group another name, at once."""
        (self.root / name).rename(self.root / to)

    def delete(self, name: str) -> None:
        """Delete a group; of a link, only the link. A crash may leave some of its files under its
        name.
        """
        path = self.root / name
        is_directory = path.is_dir() and not path.is_symlink()
        shutil.rmtree(path) if is_directory else path.unlink()
