"""Fetching published data sets: whole, verified, and once for all processes.

Each file is fetched beside its place, checked, and renamed. So what lies in a data set's directory
is as published, whenever this is interrupted. `HOLDFAST_MIRROR` names an address to fetch from
instead, which holds `NAME/FILE` for each data set.
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
"""Told how many bytes of a file have come."""

SILENCE_S: Final = 30.0
"""How long a server may be silent."""

TIMEOUT_S: Final = 3600.0
"""How long a data set may take, and how long another process that fetches it is waited for."""

_BLOCK: Final = 1 << 18


def download(
    name: str, published: Published, into: Path, report: Report, *, timeout_s: float = TIMEOUT_S
) -> None:
    """Fetch the files of a data set that are not in `into` yet.

    Raises:
        JobError: A file cannot be fetched, kept, or is not the published one.
    """
    mirror = os.environ.get("HOLDFAST_MIRROR")
    site = f"{mirror.rstrip('/')}/{name}" if mirror else published.site
    if not site.startswith(("http://", "https://")):
        raise JobError(f"HOLDFAST_MIRROR={mirror} is no http or https address")
    deadline = time.monotonic() + timeout_s
    try:
        into.mkdir(parents=True, exist_ok=True)
        with locked(into / ".lock", timeout_s):
            for file in published.files:
                if not (into / file.name).exists():
                    _fetch(f"{site}/{file.name}", file, into, report, deadline)
    except OSError as error:
        raise JobError(
            f"{error.filename or into}: {error.strerror}; mend that, or name another directory "
            "with HOLDFAST_DATA"
        ) from None


def _fetch(address: str, file: PublishedFile, into: Path, report: Report, deadline: float) -> None:
    """Raises: OSError: The file cannot be kept. JobError: It cannot be fetched."""
    part, hasher, size = into / f"{file.name}.part", hashlib.sha256(), 0
    try:
        with part.open("wb") as out:
            for block in _blocks(address, into):
                out.write(block)
                hasher.update(block)
                size += len(block)
                report(file, size)
                if time.monotonic() > deadline:
                    raise JobError(f"{address}: only {size} bytes came in time; try again")
                if size > file.size_bytes:
                    break
            out.flush()
            os.fsync(out.fileno())
        if size != file.size_bytes:
            raise JobError(
                f"{address} gave {size} bytes and not {file.size_bytes}; try again, or set "
                "HOLDFAST_MIRROR to another address"
            )
        if hasher.hexdigest() != file.sha256:
            raise JobError(
                f"{address} has SHA-256 {hasher.hexdigest()}, not {file.sha256}: it is not the "
                "published file, and was not kept"
            )
        part.rename(into / file.name)
    finally:
        part.unlink(missing_ok=True)


def _blocks(address: str, into: Path) -> Iterator[bytes]:
    """What lies at `address`, which is known to be of http or https."""
    request = urllib.request.Request(address, headers={"User-Agent": "holdfast"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_S) as answer:  # noqa: S310
            while block := answer.read(_BLOCK):
                yield block
    except urllib.error.HTTPError as error:
        reason = f"the server answers {error.code} {error.reason}"
        error.close()
    except urllib.error.URLError as error:
        reason = str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
    else:
        return
    raise JobError(
        f"{address}: {reason}; check the network, set HOLDFAST_MIRROR to another address, or "
        f"put the file into {into} by hand"
    )
