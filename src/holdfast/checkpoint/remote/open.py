"""Opens a store by its URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.remote.cloud import RETRY_S, SCHEMES, Cloud
from holdfast.checkpoint.remote.directory import Directory
from holdfast.checkpoint.remote.objects import Objects
from holdfast.errors import JobError


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
