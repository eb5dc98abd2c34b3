"""The manifest: the record that makes a directory of files a checkpoint.

A checkpoint is written into `step-N.<attempt>.tmp/`, each worker its part. When all parts are on
the disk, the manifest is written, the directory is renamed to `step-N/`, and every file and
directory is synced on the way. So a crash leaves either the whole checkpoint or something that is
not called one. Nothing is ever overwritten.

    runs/digits/checkpoints/
      step-00000200/
        part-0-of-2.safetensors
        part-1-of-2.safetensors
        manifest.json
      latest                      a hint for people; nothing reads it
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.arena.layout import ITEM_BYTES, Entry, Layout
from holdfast.checkpoint import parts
from holdfast.errors import CheckpointError

FORMAT: Final = 2
MANIFEST: Final = "manifest.json"
_PART: Final = re.compile(r"part-\d{1,9}-of-\d{1,9}\.safetensors", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_COMMITTED: Final = re.compile(r"step-(\d{8,18})")
_TEMPORARY: Final = re.compile(r"step-\d{8,18}\.[0-9a-f]+\.tmp")
_REMOVED: Final = "0"
_REPLACED: Final = "1"
"""In place of an attempt, in the name of a checkpoint that is deleted, or replaced by another."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Tensor(_Record):
    """Where a tensor lies in the state."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class PartFile(_Record):
    """A file with a part of the state; its digests are of the memory, not of what was read back."""

    file: str
    size_bytes: int
    first_chunk: int
    digests: tuple[str, ...]


class Best(_Record):
    """The best evaluation of a run.

    Attributes:
        value: Of the metric that the job watches; None before the first evaluation.
        step: Steps committed then; the checkpoint of that step is kept.
        since: Evaluations since then.
    """

    value: float | None = None
    step: int = 0
    since: int = 0


class Header(_Record):
    """What a checkpoint holds, apart from its files; rank 0 knows it all.

    Attributes:
        step: Steps committed; the cursor of the run.
        generation: The membership that wrote it.
        lineage: The job's keys that decide the weights.
        tensors: The layout of the state, `size_bytes` long.
        absent: Tensors that had no value yet.
        state: What the user's code keeps, `session.state`.
        user_state: What it keeps in PyTorch's own places; see `worker.user_state.user_state`.
        loss: That of the newest step.
        metrics: The newest evaluation.
        best: The best evaluation so far, where one is looked for.
        order: The data set and how the run walks through it; see `data.loading.order`.
        versions: Of holdfast, torch and Python.
        numerics: What the bits depend on besides the job; see `worker.checks.numerics`.
        numerics_changes: How that has changed over the run's lives, oldest first.
    """

    format: int = FORMAT
    step: int
    generation: int
    weights_config: dict[str, Any]
    tensors: tuple[Tensor, ...]
    size_bytes: int
    uninitialized: tuple[str, ...]
    state: dict[str, Any]
    user_state: dict[str, Any] = {}
    loss: float | None
    metrics: dict[str, float]
    best: Best = Best()
    order: dict[str, Any]
    versions: dict[str, str]
    numerics: dict[str, str] = {}
    numerics_changes: tuple[str, ...] = ()


class Manifest(Header):
    """The whole record.

    Attributes:
        root: Digest over all chunks: equal for equal states, whoever wrote them.
        parts: The files, in the order of their chunks.
        sha256: Digest of all the rest.
    """

    root: str
    parts: tuple[PartFile, ...]
    sha256: str = ""

    @property
    def layout(self) -> Layout:
        entries = (Entry(t.name, t.dtype, t.shape, t.offset) for t in self.tensors)
        return Layout(tuple(entries), self.size_bytes)

    def sealed(self) -> Self:
        """The same manifest with its own digest in it."""
        return self.model_copy(update={"sha256": self._digest()})

    def check(self, directory: Path) -> None:
        """Compare the manifest with itself and with the sizes of its files.

        Raises:
            CheckpointError: It has been altered, is for another place, or a file is not whole.
        """
        if self.format != FORMAT:
            raise CheckpointError(
                f"{directory} has format {self.format}, and this version of holdfast reads format "
                f"{FORMAT}; resume the run with holdfast {self.versions.get('holdfast')}"
            )
        if self.sha256 != self._digest():
            raise CheckpointError(f"{directory / MANIFEST} does not match its own digest")
        if directory.name != directory_name(self.step):
            raise CheckpointError(f"{directory} holds the checkpoint of step {self.step}")
        unknown = [each.dtype for each in self.tensors if each.dtype not in ITEM_BYTES]
        if unknown:
            raise CheckpointError(
                f"{directory / MANIFEST} has a tensor of dtype {unknown[0]!r:.40}, which this "
                "version of holdfast does not know"
            )
        self._check_parts(directory)
        for part in self.parts:
            path = directory / part.file
            try:
                size = path.stat().st_size if path.is_file() else None
            except OSError as error:
                raise CheckpointError(f"{path}: {error.strerror}") from None
            if size != part.size_bytes:
                raise CheckpointError(f"{path} has {size} bytes, not {part.size_bytes}")

    def _check_parts(self, directory: Path) -> None:
        """Check that the parts hold every chunk of the state exactly once, in order.

        Raises:
            CheckpointError: They leave a gap, overlap, or are named or digested wrongly.
        """
        names = [part.file for part in self.parts]
        odd = [name for name in names if not _PART.fullmatch(name) or names.count(name) > 1]
        if odd:
            raise CheckpointError(f"{directory / MANIFEST} names a part {odd[0]!r:.80}")
        end = 0
        for part in self.parts:
            if part.first_chunk != end:
                raise CheckpointError(
                    f"{directory / MANIFEST}: {part.file} begins at chunk {part.first_chunk} of "
                    f"the state, and the parts before it end at chunk {end}"
                )
            end += len(part.digests)
        if end != parts.num_chunks(self.size_bytes):
            raise CheckpointError(
                f"{directory / MANIFEST}: the parts hold {end} chunks, and a state of "
                f"{self.size_bytes} bytes has {parts.num_chunks(self.size_bytes)}"
            )
        chunks = [digest for part in self.parts for digest in part.digests]
        if not all(map(_SHA256.fullmatch, chunks)) or parts.root(chunks) != self.root:
            raise CheckpointError(f"{directory / MANIFEST}: the digests do not match their root")

    def _digest(self) -> str:
        # A manifest of an older version lacks fields, and its digest does not cover them.
        plain = self.model_dump(mode="json", exclude={"sha256"}, exclude_unset=True)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def directory_name(step: int) -> str:
    """What the checkpoint of `step` is called."""
    return f"step-{step:08d}"


def temporary_name(step: int, attempt: str) -> str:
    """Where the parts go until the checkpoint is committed; `attempt` is hexadecimal."""
    return f"{directory_name(step)}.{attempt}.tmp"


def attempt_in(generation: int, attempt: str) -> str:
    """What a generation's own try is called within an attempt to run the job, hexadecimal."""
    return f"{attempt}{generation:08x}"


def read(directory: Path) -> Manifest:
    """The manifest of a committed checkpoint, checked as far as can be without reading its parts.

    Raises:
        CheckpointError: It is missing, unreadable or does not hold together.
    """
    if not (directory / MANIFEST).is_file():  # opening a named pipe would wait for a writer
        raise CheckpointError(f"{directory / MANIFEST} is missing, or is not a file")
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{directory / MANIFEST}: {error.strerror}") from None
    except ValidationError as error:
        raise CheckpointError(
            f"{directory / MANIFEST} is damaged: {error.error_count()} faults"
        ) from None
    manifest.check(directory)
    return manifest


def committed(root: Path) -> list[Path]:
    """The directories that claim to be checkpoints, newest first."""
    if not root.is_dir():
        return []
    found = [p for p in root.iterdir() if _COMMITTED.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def step_of(directory: Path) -> int:
    """The step of a committed checkpoint, by its name."""
    return int(directory.name.removeprefix("step-"))


def commit(root: Path, manifest: Manifest, attempt: str) -> Path:
    """Make the parts that lie ready a checkpoint, in place of one of the same step if there is one;
    returns its directory.

    Raises:
        OSError: The disk is full or gone; the temporary directory is left for `sweep`.
    """
    temporary, final = root / temporary_name(manifest.step, attempt), _final(root, manifest.step)
    (temporary / MANIFEST).unlink(missing_ok=True)  # of one who was killed while he wrote it
    _write_synced(temporary / MANIFEST, manifest.sealed().model_dump_json(indent=1))
    sync_directory(temporary)
    replaced = _named_for_removal(final, _REPLACED)
    if final.exists():
        final.rename(replaced)
    temporary.rename(final)
    sync_directory(root)
    if replaced.exists():
        shutil.rmtree(replaced)
    with contextlib.suppress(OSError):  # the checkpoint exists; the hint is for people
        (root / "latest").write_text(final.name + "\n", encoding="utf-8")
    return final


def sweep(root: Path) -> None:
    """Remove what an interrupted run left half written, and bring back what it was to replace."""
    for path in list(_temporary(root)) if root.is_dir() else []:
        if not _brought_back(path):
            is_folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if is_folder else path.unlink()


def _brought_back(replaced: Path) -> bool:
    """Give a whole checkpoint its name again, if it was about to be replaced and nothing has taken
    its place.
    """
    final = replaced.with_name(replaced.name.partition(".")[0])
    if replaced != _named_for_removal(final, _REPLACED) or final.exists():
        return False
    replaced.rename(final)
    try:
        read(final)
    except CheckpointError:
        final.rename(replaced)
        return False
    return True


def remove(directory: Path) -> None:
    """Delete a checkpoint.

    The directory loses its name before its files, so a crash never leaves half a checkpoint.
    """
    removed = _named_for_removal(directory, _REMOVED)
    directory.rename(removed)
    shutil.rmtree(removed)


def quarantine(directory: Path) -> Path:
    """Take a refused checkpoint out of the way, without deleting it; returns its new place."""
    for number in range(1, 1000):
        aside = directory.with_name(f"{directory.name}.rejected-{number}")
        if not aside.exists():
            directory.rename(aside)
            return aside
    raise CheckpointError(f"{directory}: a thousand refused copies lie beside it; remove some")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _named_for_removal(directory: Path, attempt: str) -> Path:
    """The name, that of a temporary directory, under which a checkpoint is deleted."""
    return directory.with_name(f"{directory.name}.{attempt}.tmp")


def _final(root: Path, step: int) -> Path:
    return root / directory_name(step)


def _temporary(root: Path) -> Iterator[Path]:
    return (path for path in root.iterdir() if _TEMPORARY.fullmatch(path.name))


def _write_synced(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
