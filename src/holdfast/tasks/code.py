"""Code of a job: the sources that its workers import, packed for hosts that do not have them.

The coordinator's host packs them once, when a run begins. Each other host unpacks them below its
run directory and imports them from there, so all hosts run the same code. What is installed does
not travel, and neither do data.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from holdfast.errors import JobError, ProtocolError
from holdfast.linux.files import INSTALLED, is_installed
from holdfast.tasks import by_value

FOLDER: Final = "code"
"""Folder of unpacked sources, in a run directory."""
MAX_PACKED_BYTES: Final = 16 << 20
MAX_BYTES: Final = 64 << 20
"""The most that sources may take, unpacked."""
_OWN: Final = {"holdfast", "holdfast_bench"}
"""Packages of this distribution: hosts have them, also those that are installed from sources."""
_SKIPPED: Final = {"__pycache__", "node_modules", *INSTALLED}
_MARKS: Final = {"pyvenv.cfg", "events.jsonl"}
"""A folder with one of these files is a virtual environment or a run directory."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file: equal sources give equal archives."""


def pack(reference: str, run_dir: Path | None) -> bytes:
    """The sources of a job, as a zip file; empty if it needs none that are not installed.

    Args:
        reference: Code of the job; see `TrainJob.code_reference`.
        run_dir: Its run directory, which may hold sources that came from another host; None if
            there is none yet.

    Raises:
        JobError: They are too large, or exist only in the process that started the run.
    """
    base, paths = _sources(reference, run_dir)
    found = list(paths)
    return _packed(base, found) if found else b""


def pack_folder(folder: Path) -> bytes:
    """The sources and job files below a folder, as a zip file; see `pack`.

    Raises:
        JobError: They are too large.
    """
    return _packed(folder, _below(folder, (".py", ".yaml", ".yml")))


def _packed(base: Path, paths: Iterable[Path]) -> bytes:
    packed = io.BytesIO()
    size_bytes = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            data = path.read_bytes()
            size_bytes += len(data)
            if size_bytes > MAX_BYTES or packed.tell() > MAX_PACKED_BYTES:
                raise JobError(
                    f"the sources below {base} are too large for other hosts: more than "
                    f"{MAX_PACKED_BYTES >> 20} MiB packed or {MAX_BYTES >> 20} MiB unpacked; put "
                    "the task in a folder of its own"
                )
            info = zipfile.ZipInfo(path.relative_to(base).as_posix(), _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return packed.getvalue()


def unpack(packed: bytes, run_dir: Path) -> None:
    """Make packed sources those of a run directory, in place of older ones.

    Raises:
        ProtocolError: It is no such archive, is too large, or names a file outside of its folder.
        OSError: The disk is full, say.
    """
    target = run_dir / FOLDER
    draft = run_dir / f".{FOLDER}.draft"
    for folder in (target, draft):
        shutil.rmtree(folder, ignore_errors=True)
    if not packed:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            _check(archive.infolist())
            for info in archive.infolist():
                path = draft / info.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(info))
    except zipfile.BadZipFile as error:
        raise ProtocolError(f"the coordinator sent sources that are no zip file: {error}") from None
    draft.rename(target)


def located(reference: str, run_dir: Path) -> str:
    """A reference to code that came from another host, where this host has it; else the same."""
    folder = run_dir / FOLDER
    (place, _, name) = reference.rpartition(":")
    if not (place and folder.is_dir()):
        return reference
    own = Path(place).name if place.endswith(".py") else place
    return f"{folder.resolve() / own}:{name}"


def _check(files: Iterable[zipfile.ZipInfo]) -> None:
    """Raises: ProtocolError: Some file must not be unpacked."""
    size_bytes = 0
    for info in files:
        size_bytes += info.file_size  # no more is read than this
        path = PurePosixPath(info.filename)
        is_inside = not path.is_absolute() and ".." not in path.parts and path.suffix == ".py"
        if not is_inside or "\0" in info.filename:
            raise ProtocolError(f"the coordinator sent a source named {info.filename!r:.80}")
    if size_bytes > MAX_BYTES:
        raise ProtocolError(f"the coordinator sent {size_bytes} bytes of sources")


def _sources(reference: str, run_dir: Path | None) -> tuple[Path, Iterable[Path]]:
    """The files to pack, and the folder that their names are relative to."""
    place = _place_of(reference)
    if not place:
        return Path(), ()
    if run_dir is not None and (run_dir / FOLDER).is_dir():
        return run_dir / FOLDER, _below(run_dir / FOLDER)
    if place.endswith(".py"):
        return Path(place).parent, _below(Path(place).parent)
    package = _package(place.partition(".")[0])
    if package is None:
        return Path(), ()
    return package.parent, [package] if package.is_file() else _below(package)


def _place_of(reference: str) -> str:
    """The file or module of a job's own code; empty if it has none."""
    if reference.startswith(by_value.PREFIX):
        raise JobError(
            f"task {reference} cannot run on several hosts: its code exists in this process only; "
            "define it in a file, and name it as path/to/file.py:name"
        )
    return reference.rpartition(":")[0]


def _package(name: str) -> Path | None:
    """The folder or file of a top-level module; None if it is installed, or is not found."""
    if name in _OWN:
        return None
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
    finally:
        sys.path[:] = before
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    if spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations)))
    else:
        path = Path(spec.origin or "")
    return None if is_installed(str(path)) else path


def _below(root: Path, endings: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """The sources below a folder, in order of their names."""
    for folder, inner, files in os.walk(root):
        here = Path(folder)
        if here != root and _MARKS & set(files):
            inner.clear()
            continue
        inner[:] = sorted(each for each in inner if each[0] != "." and each not in _SKIPPED)
        yield from (here / each for each in sorted(files) if each.endswith(endings))
