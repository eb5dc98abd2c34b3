"""Held: a checkpoint whose files are kept open, so that it can be sent to its end even if retention
deletes it meanwhile. The disk keeps their space until then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.checkpoint.storage import DirectoryStorage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError
from holdfast.linux.files import read_at


class _HeldFiles(DirectoryStorage):
    """A storage that reads the files of one checkpoint through open descriptors.

    Args:
        root: The directory of the checkpoints.
        files: The descriptors, by name of the file.
    """

    def __init__(self, root: Path, files: dict[str, int]) -> None:
        super().__init__(root)
        self._files = files

    def size(self, name: str, file: str) -> int | None:  # noqa: ARG002  # there is only one
        """Implements `Storage`."""
        status = os.fstat(self._files[file]) if file in self._files else None
        return status.st_size if status and stat.S_ISREG(status.st_mode) else None

    def read(
        self, name: str, file: str, start: int, into: memoryview, *, cached: bool = True
    ) -> None:
        """Implements `Storage`."""
        opened = Path(f"/proc/self/fd/{self._files[file]}")  # also if it is deleted; see proc(5)
        missing = len(into) - read_at(opened, start, into, cached=cached)
        if missing:
            raise CheckpointError(
                f"{self.location(name)}/{file} is truncated: {missing} bytes are missing"
            )


@contextmanager
def held(run_dir: Path, name: str) -> Iterator[CheckpointStore]:
    """A store that reads one checkpoint of a run, which is held while the block runs.

    Args:
        run_dir: The run's directory.
        name: The checkpoint.

    Raises:
        OSError: It cannot be opened.
    """
    root = run_dir / "checkpoints"
    with ExitStack() as opened:
        # An open file keeps its bytes after its name is gone. A pipe must not block: see `size`.
        files = dict[str, int]()
        for path in (root / name).iterdir():
            files[path.name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            opened.callback(os.close, files[path.name])
        yield CheckpointStore(_HeldFiles(root, files))
