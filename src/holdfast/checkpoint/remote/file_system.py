"""FileSystem: objects as files of a file system of the library fsspec, such as SFTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.errors import JobError


class FileSystem:
    """Objects are files below one path. Not every such file system can write a file at once, or
    make sure that it is new; a file that was cut off is found by its size or its digest.

    Args:
        url: Whatever fsspec understands.

    Raises:
        JobError: A library is not installed, or none knows the scheme.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise JobError(
                f"{url} needs the library fsspec: pip install 'holdfast[objects]'"
            ) from None
        try:
            system, self._root = url_to_fs(url)
        except ImportError as error:
            raise JobError(f"{url} needs a library: {error}") from None
        except Exception as error:  # noqa: BLE001  # whatever a file system's library raises
            raise JobError(f"{url} cannot be used: {error}") from None
        self._system: Any = system
        self.url = url

    def put(self, name: str, data: bytes | memoryview, *, new: bool = False) -> bool:
        """See `Objects`."""
        path = self._path(name)
        with self._errors():
            if new and self._system.exists(path):
                return False
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, bytes(data))
        return True

    def get(self, name: str) -> bytes:
        """See `Objects`."""
        with self._errors():
            return bytes(self._system.cat_file(self._path(name)))

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        with self._errors():
            try:
                return int(self._system.size(self._path(name)))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def children(self, folder: str) -> list[str]:
        """See `Objects`."""
        with self._errors():
            self._system.invalidate_cache()
            try:
                found = self._system.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def delete(self, name: str) -> None:
        """See `Objects`."""
        with self._errors(), suppress(FileNotFoundError):
            self._system.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of any library as those of `Objects`."""
        try:
            yield
        except OSError:
            raise
        except NotImplementedError:
            raise PermissionError(f"{self.url}: this kind of store cannot be written to") from None
        except Exception as error:  # noqa: BLE001  # whatever a file system's library raises
            raise OSError(f"{self.url}: {type(error).__name__}: {error}") from None
