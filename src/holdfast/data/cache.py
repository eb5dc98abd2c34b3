"""Cache: samples that were decoded from files once and are then memory-mapped by every worker.

    DIR/NAME-KEY/
      training-x.npy      images, uint8 or float32, [n, channels, height, width]
      training-y.npy      classes, int64[n]
      test-x.npy …        if the data set has a test part
      manifest.json       shapes and digests
      verified            the state of the files when their digests were last verified
    DIR/NAME-KEY.lock

KEY is a digest of the settings and of the paths, sizes and times of the files that are read, so a
changed file gives another cache. One process builds it, in a directory that is renamed once it is
on the disk; the others wait for its lock. The kernel releases the lock of a process that dies.

The first process that opens the cache after a reboot, or after the files have changed, verifies the
digests; a cache that does not match is rebuilt. All other processes map it at once, whatever its
size.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from PIL import __version__ as pillow_version

from holdfast.data.images import Samples, Scale, digest
from holdfast.data.source import SampleSource, write_samples
from holdfast.errors import JobError
from holdfast.linux.files import state_of
from holdfast.linux.lock import locked
from holdfast.strict import Strict

Measure = Callable[[dict[str, Samples]], Scale]

FORMAT: Final = 1

WAIT_S: Final = 6 * 3600.0
"""Longest wait for another process that builds the cache."""

_HEADER_BYTES: Final = 128
"""Size of numpy's header for up to four dimensions."""


class _Part(Strict):
    dtype: str
    shape: tuple[int, ...]
    sha256: str


class _Manifest(Strict):
    parts: dict[str, _Part]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str = ""
    """Digest of all other fields."""

    def digest(self) -> str:
        plain = json.dumps(self.model_dump(mode="json", exclude={"sha256"}), sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Cached:
    """The content of a cache.

    Attributes:
        samples: The samples of each source, mapped.
        scale: Their mean and standard deviation.
    """

    samples: dict[str, Samples]
    scale: Scale


def cached(
    directory: Path,
    name: str,
    settings: Mapping[str, Any],
    sources: Mapping[str, SampleSource],
    measure: Measure,
) -> Cached:
    """The samples of each of `sources`, and their scale.

    Args:
        directory: The directory of all caches; created if it is missing.
        name: First part of the cache's name; the key follows.
        settings: What determines the results of `sources` and `measure`, apart from the files;
            plain data.
        sources: By the name of their part, such as `training`.
        measure: Computes the scale of the samples; called once, by the process that builds.

    Raises:
        JobError: A source cannot be read, the cache cannot be written, or waiting took too long.
    """
    place = directory / f"{name}-{_key(settings, sources)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(place.with_name(f"{place.name}.lock"), WAIT_S):
            opened = _opened(place, list(sources))
            if opened is None:
                _build(place, sources, measure)
                opened = _opened(place, list(sources))
    except OSError as error:
        raise JobError(
            f"data.cache {error.filename or place}: {error.strerror}; fix that, or set data.cache "
            "to another directory"
        ) from None
    assert opened is not None, "a new cache does not match its own digests"
    return opened


def _key(settings: Mapping[str, Any], sources: Mapping[str, SampleSource]) -> str:
    """Raises: OSError: A file is missing."""
    files = [  # a link's own place counts too: the class of an image may follow from it
        (name, str(path.absolute()), str(path.resolve()), state.st_size, state.st_mtime_ns)
        for name, source in sources.items()
        for path in source.files
        for state in [path.stat()]
    ]
    known = json.dumps([FORMAT, pillow_version, dict(settings), files], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _build(place: Path, sources: Mapping[str, SampleSource], measure: Measure) -> None:
    """Raises: JobError: A source cannot be read. OSError: The disk is full."""
    draft = place.with_name(f"{place.name}.tmp")
    for leftover in (draft, place):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    try:
        parts = {name: _written(draft, name, source) for name, source in sources.items()}
        scale = measure({name: _mapped(draft, name, part) for name, part in parts.items()})
        manifest = _Manifest(parts=parts, mean=scale.mean, std=scale.std)
        sealed = manifest.model_copy(update={"sha256": manifest.digest()})
        (draft / "manifest.json").write_text(sealed.model_dump_json(indent=1), encoding="utf-8")
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _written(draft: Path, name: str, source: SampleSource) -> _Part:
    paths = [draft / f"{name}-{array}.npy" for array in "xy"]
    with paths[0].open("wb") as x, paths[1].open("wb") as y:
        for file in (x, y):
            file.seek(_HEADER_BYTES)
        form = write_samples(source, x, y)
        _finish(x, form.dtype, form.shape)
        _finish(y, "int64", form.shape[:1])
    return _Part(dtype=form.dtype, shape=form.shape, sha256=form.sha256)


def _finish(file: BinaryIO, dtype: str, shape: tuple[int, ...]) -> None:
    """Write numpy's header at the start of `file`, and flush the file to the disk."""
    file.seek(0)
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    assert file.tell() == _HEADER_BYTES, "numpy's header has another size"
    file.flush()
    os.fsync(file.fileno())


def _opened(place: Path, names: list[str]) -> Cached | None:
    """The content of a cache; None if there is none, or it does not match its digests."""
    try:
        manifest = _Manifest.model_validate_json((place / "manifest.json").read_bytes())
        samples = {name: _mapped(place, name, manifest.parts[name]) for name in names}
    except (FileNotFoundError, EOFError, ValueError, KeyError):
        return None
    if manifest.sha256 != manifest.digest():
        return None
    opened = Cached(samples, Scale(manifest.mean, manifest.std))
    state = state_of(path for path in place.iterdir() if path.name != "verified")
    if (place / "verified").exists() and (place / "verified").read_bytes() == state:
        return opened
    if any(digest(part.x, part.y) != part.sha256 for part in samples.values()):
        return None
    with suppress(OSError):  # the next process verifies again
        (place / "verified").write_bytes(state)
    return opened


def _mapped(place: Path, name: str, part: _Part) -> Samples:
    """Raises: ValueError: A file is damaged or has the wrong size."""
    arrays = []
    wanted = {"x": (part.dtype, part.shape), "y": ("int64", part.shape[:1])}
    for array, (dtype, shape) in wanted.items():
        path = place / f"{name}-{array}.npy"
        mapped = np.asarray(np.load(path, mmap_mode="r"))
        if (str(mapped.dtype), mapped.shape) != (dtype, shape):
            raise ValueError(f"{path} holds {mapped.dtype} of shape {mapped.shape}")
        if path.stat().st_size != _HEADER_BYTES + mapped.nbytes:
            raise ValueError(f"{path} has {path.stat().st_size} bytes")
        arrays.append(mapped)
    return Samples(x=arrays[0], y=arrays[1], sha256=part.sha256)
