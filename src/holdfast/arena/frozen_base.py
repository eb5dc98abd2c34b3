"""Frozen base: tensors that a host holds once, mapped read-only by all of its workers.

    DIR/
      tensors          every tensor, at a multiple of 64 bytes
      manifest.json    their places, their SHA-256, and a digest of each slice

A tensor of a base is no state: it is in no replica, checkpoint or transfer. A process that writes
to one dies of SIGSEGV. `arena.base_cache` builds bases.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch

from holdfast.arena.digest import digest
from holdfast.arena.layout import ALIGNMENT, Entry, Layout, aligned
from holdfast.arena.tensors import field_of, views
from holdfast.errors import JobError
from holdfast.strict import Strict

TENSORS: Final = "tensors"
MANIFEST: Final = "manifest.json"
NUM_SLICES: Final = 256
"""Slices that are verified one by one; at least 64 bytes each."""


class _Place(Strict):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class BaseManifest(Strict):
    """Content of a base.

    Attributes:
        tensors: Place of each tensor.
        size_bytes: Size of the file with the tensors.
        sha256: SHA-256 of that file.
        slices: The digest of each slice; see `arena.digest`.
    """

    tensors: tuple[_Place, ...]
    size_bytes: int
    sha256: str
    slices: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        """The places of the tensors."""
        entries = tuple(Entry(p.name, p.dtype, p.shape, p.offset) for p in self.tensors)
        return Layout(entries, self.size_bytes)

    @property
    def digest(self) -> str:
        """SHA-256 over the names, dtypes, shapes, places and bytes of the tensors."""
        places = [place.model_dump() for place in self.tensors]
        return hashlib.sha256(json.dumps([places, self.sha256]).encode()).hexdigest()


class FrozenBase:
    """A mapping of a base in this process.

    Args:
        name: Name of the base.
        folder: Directory of the base.

    Attributes:
        name, folder: The arguments.
        tensors: By name, in the order in which they were built; read-only.
        digest: SHA-256 over names, dtypes, shapes and bytes, hexadecimal.
        size_bytes: Size of the mapping.

    Raises:
        OSError: It is missing.
        ValueError: It does not match its manifest.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._manifest = manifest = BaseManifest.model_validate_json(
            (folder / MANIFEST).read_bytes()
        )
        self.name = name
        self.folder = folder
        self.digest = manifest.digest
        self.size_bytes = manifest.size_bytes
        path = folder / TENSORS
        if path.stat().st_size != manifest.size_bytes or not manifest.tensors:
            raise ValueError(f"{path} has {path.stat().st_size} bytes, not {manifest.size_bytes}")
        self._flat = _mapped(path)
        self.tensors: Mapping[str, torch.Tensor] = views(self._flat, manifest.layout)
        self._start = self._flat.data_ptr()

    def holds(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's memory is in the mapping."""
        return self._start <= tensor.data_ptr() < self._start + self.size_bytes

    def is_intact(self, number: int) -> bool:
        """True if slice `number % NUM_SLICES` has its digest."""
        start, end = _slices(self.size_bytes)[number % NUM_SLICES]
        return digest([self._flat[start:end]]) == self._manifest.slices[number % NUM_SLICES]


def write_base(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write a base, tensor by tensor, into an empty folder.

    Nothing is flushed: the first process that opens it after a reboot verifies all of it.

    Raises:
        OSError: The disk is full.
        JobError: A tensor cannot be laid out, there is none, or two have the same name.
    """
    places: dict[str, _Place] = {}
    hasher = hashlib.sha256()
    end = 0
    path = folder / TENSORS
    with path.open("wb") as file:
        for name, tensor in tensors:
            if name in places:
                raise JobError(f"two tensors are called {name}; give each a name of its own")
            field = field_of(name, tensor)
            places[name] = _Place(name=name, dtype=field.dtype, shape=field.shape, offset=end)
            # Padded with zeros to the alignment, so that the digest covers each byte of the file.
            plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            content = plain.numpy().tobytes().ljust(aligned(field.size_bytes), b"\0")
            file.write(content)
            hasher.update(content)
            end += len(content)
    if not end:
        raise JobError("there is no tensor; yield at least one")
    # Slices are digested from the file itself, as every later process sees it.
    flat = _mapped(path)
    manifest = BaseManifest(
        tensors=tuple(places.values()),
        size_bytes=end,
        sha256=hasher.hexdigest(),
        slices=tuple(digest([flat[start:stop]]) for start, stop in _slices(end)),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")


def _mapped(path: Path) -> torch.Tensor:
    """A file as read-only memory, uint8[size]; the mapping lives as long as the tensor."""
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(mapping, dtype=torch.uint8)


def _slices(size_bytes: int) -> list[tuple[int, int]]:
    """The start and end of each slice, bytes; later ones may be empty."""
    # Slices of equal size, except for the last ones of a small base, which are empty.
    step = max(ALIGNMENT, aligned(-(-size_bytes // NUM_SLICES)))
    starts = [min(number * step, size_bytes) for number in range(NUM_SLICES)]
    return [(start, min(start + step, size_bytes)) for start in starts]
