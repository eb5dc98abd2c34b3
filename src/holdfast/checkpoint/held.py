"""Held: a checkpoint whose files are kept open, so that it can be sent to its end even if retention
deletes it meanwhile. The disk keeps their space until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import CheckpointStore


class _HeldFiles(Storage):
    """A storage that reads the files of one checkpoint through open descriptors.

    Args:
        root: The directory of the checkpoints.
        files: The descriptors, by name of the file.
    """

    def __init__(self, root: Path, files: dict[str, int]) -> None:
        super().__init__(root)
        self._files = files

    def path(self, name: str, file: str) -> Path:
        """Path of the open file, which is there also if it was deleted; see proc(5)."""
        opened = self._files.get(file)
        return super().path(name, file) if opened is None else Path(f"/proc/self/fd/{opened}")


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
