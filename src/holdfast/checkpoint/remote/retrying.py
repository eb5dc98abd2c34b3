"""Retrying: repeats what a store could not do at once, with growing pauses and a deadline."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from holdfast.checkpoint.remote.objects import Objects

T = TypeVar("T")

_LASTING: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
_LASTING_NUMBERS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG)
"""Errors that a repetition does not change: other OSErrors may pass. ESTALE, of NFS, is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an operation is repeated.

    Attributes:
        pause_s: The pause after the first failure; each further one is twice as long.
        max_pause_s: The longest pause.
        deadline_s: After how long a failure is final.
        missing_s: After how long an object that is expected counts as missing.
    """

    pause_s: float = 0.1
    max_pause_s: float = 5.0
    deadline_s: float = 30.0
    missing_s: float = 3.0


class Retrying:
    """A store whose operations are repeated; see `Objects`.

    Args:
        objects: The store.
        patience: How long.
    """

    def __init__(self, objects: Objects, patience: Patience | None = None) -> None:
        self.url, self._objects = objects.url, objects
        self._patience = patience or Patience()

    def put(self, name: str, data: bytes | memoryview, *, new: bool = False) -> bool:
        """See `Objects`. If the answer to an earlier attempt was lost, `new` gives False."""
        return self._repeated(lambda: self._objects.put(name, data, new=new))

    def get(self, name: str) -> bytes:
        """See `Objects`."""
        return self._repeated(lambda: self._objects.get(name))

    def expect(self, name: str) -> bytes:
        """The content of an object that must be there, even if the store does not show it yet.

        Raises:
            FileNotFoundError: It is not there.
            OSError: It cannot be read.
        """
        return self._repeated(lambda: self._objects.get(name), awaits_missing=True)

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        return self._repeated(lambda: self._objects.size(name))

    def children(self, folder: str) -> list[str]:
        """See `Objects`."""
        return self._repeated(lambda: self._objects.children(folder))

    def delete(self, name: str) -> None:
        """See `Objects`."""
        self._repeated(lambda: self._objects.delete(name))

    def _repeated(self, attempt: Callable[[], T], *, awaits_missing: bool = False) -> T:
        began, pause_s = time.monotonic(), self._patience.pause_s
        while True:
            try:
                return attempt()
            except OSError as error:
                is_missing = isinstance(error, FileNotFoundError)
                if is_lasting(error) and not (is_missing and awaits_missing):
                    raise
                limit_s = self._patience.missing_s if is_missing else self._patience.deadline_s
                if time.monotonic() - began + pause_s > limit_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._patience.max_pause_s)


def is_lasting(error: OSError) -> bool:
    """Whether an operation would fail again."""
    return isinstance(error, _LASTING) or error.errno in _LASTING_NUMBERS
