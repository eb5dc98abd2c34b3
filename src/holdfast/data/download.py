"""Download: fetches published data sets, verifies them, and does so once for all processes.

Each file is written as `FILE.part`, verified and renamed, so a data set's directory holds only
files as published, even after an interruption. `HOLDFAST_MIRROR` is the address of a mirror, which
has `NAME/FILE` for each data set.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from holdfast.data.published import Published, PublishedFile
from holdfast.errors import JobError
from holdfast.linux.lock import locked

Report = Callable[[PublishedFile, int], None]
"""Called with the number of bytes of a file that have arrived."""

SOCKET_TIMEOUT_S: Final = 30.0
"""Longest wait for the server's next bytes."""

TIMEOUT_S: Final = 3600.0
"""Longest time for a data set, and longest wait for another process that downloads it."""

_BLOCK: Final = 1 << 18


def download(name: str, published: Published, into: Path, report: Report) -> None:
    """Download the files of a data set that are not in `into` yet.

    Raises:
        JobError: A file cannot be downloaded or written, or is not the published one.
    """
    mirror = os.environ.get("HOLDFAST_MIRROR")
    site = f"{mirror.rstrip('/')}/{name}" if mirror else published.site
    if not site.startswith(("http://", "https://")):
        raise JobError(f"HOLDFAST_MIRROR={mirror} is not an http or https address")
    deadline = time.monotonic() + TIMEOUT_S
    try:
        into.mkdir(parents=True, exist_ok=True)
        with locked(into / ".lock", TIMEOUT_S):
            for file in published.files:
                if not (into / file.name).exists():
                    _fetch(f"{site}/{file.name}", file, into, report, deadline)
    except OSError as error:
        raise JobError(
            f"{error.filename or into}: {error.strerror}; fix that, or set HOLDFAST_DATA to "
            "another directory"
        ) from None


def _fetch(address: str, file: PublishedFile, into: Path, report: Report, deadline: float) -> None:
    """Raises: OSError: The file cannot be written. JobError: It cannot be downloaded."""
    part = into / f"{file.name}.part"
    hasher = hashlib.sha256()
    size = 0
    try:
        with part.open("wb") as out:
            for block in _blocks(address, into):
                out.write(block)
                hasher.update(block)
                size += len(block)
                report(file, size)
                if time.monotonic() > deadline:
                    raise JobError(
                        f"{address}: only {size} bytes arrived within {TIMEOUT_S:.0f} s; try again"
                    )
                if size > file.size_bytes:
                    break
            out.flush()
            os.fsync(out.fileno())
        if size != file.size_bytes:
            raise JobError(
                f"{address} returned {size} bytes, not {file.size_bytes}; try again, or set "
                "HOLDFAST_MIRROR to another address"
            )
        if hasher.hexdigest() != file.sha256:
            raise JobError(
                f"{address} has SHA-256 {hasher.hexdigest()}, not {file.sha256}: it is not the "
                "published file and was deleted; try again, or set HOLDFAST_MIRROR"
            )
        part.rename(into / file.name)
    finally:
        part.unlink(missing_ok=True)


def _blocks(address: str, into: Path) -> Iterator[bytes]:
    """The content at `address`, an http or https address."""
    request = urllib.request.Request(address, headers={"User-Agent": "holdfast"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=SOCKET_TIMEOUT_S) as answer:  # noqa: S310
            while block := answer.read(_BLOCK):
                yield block
    except urllib.error.HTTPError as error:
        reason = f"the server returned {error.code} {error.reason}"
        error.close()
    except urllib.error.URLError as error:
        reason = str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
    else:
        return
    raise JobError(
        f"{address}: {reason}; check the network, set HOLDFAST_MIRROR to another address, or "
        f"put the file into {into} yourself"
    )
