"""Opens a store by its URL; a directory is one here."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.remote.cloud import RETRY_S, SCHEMES, Cloud
from holdfast.checkpoint.remote.objects import Objects
from holdfast.errors import JobError
from holdfast.linux.files import sync_directory, write_synced


def open_store(url: str, environment: Mapping[str, str], retry_s: float = RETRY_S) -> Objects:
    """The store at a URL; it is not asked for anything yet.

    Args:
        url: A path or `file://…` for a directory; `s3://bucket/prefix`, `gs://…`, `az://…`.
        environment: Variables of the process.
        retry_s: Time for which a request to a bucket is repeated.

    Raises:
        JobError: There is no such kind of store, or its library is not installed.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Directory(Path(url))
    if scheme in SCHEMES:
        return Cloud(url.rstrip("/"), environment, retry_s)
    if scheme != "file":
        raise JobError(
            f"{url}: {scheme}:// is no store for backups; name a directory, or s3://, gs:// or "
            "az://. Other storage can be mounted as a directory"
        )
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise JobError(f"{url} names a host; write file:///PATH")
    return Directory(Path(unquote(parts.path)))


_DRAFT: Final = ".draft-"


class Directory:
    """Objects are files below one directory.

    Args:
        root: The directory; it need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.url = str(root.absolute())
        self._root = root

    def put(self, name: str, data: bytes | memoryview, *, new: bool = False) -> bool:
        """Implements `Objects`; after a crash there is the old content or the new, whole."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
        try:
            # Durable under a name that no reader takes, then renamed at once.
            write_synced(draft, [data])
            if new and not _linked(draft, path):
                return False
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(path.parent)
        return True

    def get(self, name: str) -> bytes:
        """Implements `Objects`."""
        return (self._root / name).read_bytes()

    def size(self, name: str) -> int | None:
        """Implements `Objects`."""
        try:
            return (self._root / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def children(self, folder: str) -> list[str]:
        """Implements `Objects`."""
        try:
            found = [path.name for path in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []
        return [name for name in found if not name.startswith(_DRAFT)]

    def delete(self, name: str) -> None:
        """Implements `Objects`."""
        path = self._root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _linked(draft: Path, path: Path) -> bool:
    """Give a file a second name that must be free, at once; whether it was free."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:  # the file system knows no links; without them, two writers may both succeed
        return not path.exists()
    return True
