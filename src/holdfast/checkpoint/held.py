"""Held: the files of a checkpoint, kept open, so that they can be read to their end even if
retention deletes the checkpoint meanwhile. The disk keeps their space until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.checkpoint.storage import DirectoryStorage
from holdfast.errors import CheckpointError


class HeldFiles(DirectoryStorage):
    """A storage that reads some files of one checkpoint through open descriptors.

    Args:
        root: The directory of the checkpoints.
        files: The descriptors, by name of the file.
    """

    def __init__(self, root: Path, files: dict[str, int]) -> None:
        super().__init__(root)
        self._files = files

    def read(
        self, name: str, file: str, start: int, into: memoryview, *, cached: bool = True
    ) -> None:
        """See `Storage`; unless `cached`, the page cache does not keep what was read."""
        fd, done = self._files[file], 0
        while done < len(into):
            count = os.preadv(fd, [into[done:]], start + done)
            if not count:
                raise CheckpointError(
                    f"{self.location(name)}/{file} is truncated: {len(into) - done} bytes are "
                    "missing"
                )
            done += count
        if not cached:
            os.posix_fadvise(fd, start, len(into), os.POSIX_FADV_DONTNEED)


@contextmanager
def held(root: Path, name: str, files: Sequence[str]) -> Iterator[HeldFiles]:
    """Hold files of the checkpoint `name` while the block runs.

    Raises:
        OSError: A file cannot be opened.
    """
    with ExitStack() as opened:
        descriptors = dict[str, int]()
        for file in files:
            descriptors[file] = os.open(root / name / file, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptors[file])
        yield HeldFiles(root, descriptors)
