"""Opens a store by its URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.remote.cloud import SCHEMES, Cloud
from holdfast.checkpoint.remote.directory import Directory
from holdfast.checkpoint.remote.file_system import FileSystem
from holdfast.checkpoint.remote.objects import Objects
from holdfast.checkpoint.remote.retrying import Patience, Retrying
from holdfast.errors import JobError


def open_store(
    url: str, environment: Mapping[str, str], patience: Patience | None = None
) -> Retrying:
    """The store at a URL; it is not asked for anything yet.

    Args:
        url: A path or `file://…` for a directory; `s3://bucket/prefix`, `gs://…`, `az://…`; any
            other scheme that the library fsspec knows.
        environment: Variables of the process.
        patience: How long operations are repeated.

    Raises:
        JobError: There is no such kind of store, or its library is not installed.
    """
    return Retrying(_store(url, environment), patience)


def _store(url: str, environment: Mapping[str, str]) -> Objects:
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Directory(Path(url))
    if scheme in SCHEMES:
        return Cloud(url.rstrip("/"), environment)
    if scheme != "file":
        return FileSystem(url.rstrip("/"))
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise JobError(f"{url} names a host; write file:///PATH")
    return Directory(Path(unquote(parts.path)))
