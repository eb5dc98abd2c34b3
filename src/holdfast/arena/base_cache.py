"""Base cache: builds a base once on a host, and maps it in every process after that.

    DIR/NAME-KEY/
      …                see `arena.frozen_base`
      verified         the state of the files when all digests were last verified
    DIR/NAME-KEY.lock

One process builds, in a directory that is renamed once it is complete; the others wait for its
lock. The first process that opens a base after a reboot, or after its files have changed, verifies
all of it. A base that is damaged is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from holdfast.arena.frozen_base import MANIFEST, NUM_SLICES, TENSORS, FrozenBase, write_base
from holdfast.errors import HoldfastError, JobError
from holdfast.linux.files import state_of
from holdfast.linux.lifeline import die_with_parent
from holdfast.linux.lock import locked

FORMAT: Final = 2
WAIT_S: Final = 6 * 3600.0
"""Longest wait for the process that builds the base."""
_VERIFIED: Final = "verified"
_MAX_REPORT: Final = 1 << 16

Build = Callable[[], Iterable[tuple[str, torch.Tensor]]]
"""Yields the tensors of a base by name."""


def cached_base(folder: Path, name: str, key: Mapping[str, Any], build: Build) -> FrozenBase:
    """The base called `name`, which is built if this host does not have it.

    Args:
        folder: The directory of all bases; created if it is missing.
        name: First part of the directory's name; a digest of the key follows.
        key: Determines the tensors; plain data.
        build: Called in a process of its own: what it allocates does not stay in this one. It must
            not use a GPU. PyTorch has one thread in it, because sums depend on the number of
            threads, and hosts with more cores must build the same tensors.

    Raises:
        JobError: It cannot be built or written, or waiting took too long.
    """
    # Another version of torch may quantize to other bits, so it is part of the key.
    known = json.dumps([FORMAT, torch.__version__, dict(key)], sort_keys=True)
    place = folder / f"{name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # One process at a time per base: the others find it built when they get the lock.
        with locked(place.with_name(f"{place.name}.lock"), WAIT_S):
            found = _opened(name, place)
            if found is None:
                _build(place, name, build)
                found = _opened(name, place)
    except OSError as error:
        raise JobError(
            f"base {name}, {error.filename or place}: {error.strerror}; fix that, or choose "
            "another directory for its cache"
        ) from None
    if found is None:
        raise JobError(f"base {name}: {place} does not match its digests although it is new")
    return found


def distrust(base: FrozenBase) -> None:
    """Let the next process that opens a base verify all of it."""
    (base.folder / _VERIFIED).unlink(missing_ok=True)


def _opened(name: str, place: Path) -> FrozenBase | None:
    """The base in a directory; None if there is none, or it is damaged."""
    try:
        base = FrozenBase(name, place)
        # Files that are unchanged since they were verified, in the same boot: nothing is read
        # again.
        state = state_of([place / TENSORS, place / MANIFEST])
        marker = place / _VERIFIED
        if marker.exists() and marker.read_bytes() == state:
            return base
    except (FileNotFoundError, ValueError):
        return None
    # The first process after a reboot or a change reads all of it.
    if not all(map(base.is_intact, range(NUM_SLICES))):
        return None
    with suppress(OSError):  # the next process verifies again
        marker.write_bytes(state)
    return base


def _build(place: Path, name: str, build: Build) -> None:
    """Raises: JobError: It cannot be built. OSError: It cannot be written."""
    draft = place.with_name(f"{place.name}.tmp")
    # A draft is of a process that was killed; a base that is here did not match its digests.
    for leftover in (draft, place):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    try:
        _build_in_child(draft, name, build)
        # Complete from here on: a directory of this name is never a part of a base.
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _build_in_child(draft: Path, name: str, build: Build) -> None:
    """Build in a process that is forked from this one, and has its code and data.

    Raises:
        JobError: The process failed.
        OSError: It could not write the base.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    # In a child, so that what building allocates is freed when it ends.
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become_builder(parent, writing, draft, build)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if not select.select([pipe], [], [], WAIT_S)[0]:  # it closes the pipe when it ends
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise JobError(f"base {name} was not built within {WAIT_S / 3600:.0f} h; see `build`")
        report = pipe.read(_MAX_REPORT)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return
    text = report.decode(errors="replace")
    # The child's error is raised here as if this process had met it.
    if text.startswith("errno "):
        number = int(text.split()[1])
        raise OSError(number, os.strerror(number), str(draft))
    if code == -signal.SIGKILL:
        text = "it was killed, probably because the host had too little memory"
    raise JobError(f"base {name} could not be built: {text or f'its process ended with {code}'}")


def _become_builder(parent: int, writing: int, draft: Path, build: Build) -> NoReturn:
    code = 1
    try:
        die_with_parent(parent)
        torch.set_num_threads(1)
        write_base(draft, build())
        code = 0
    except OSError as error:
        os.write(writing, f"errno {error.errno}".encode())
    except HoldfastError as error:
        os.write(writing, str(error).encode()[:_MAX_REPORT])
    except BaseException as error:  # noqa: BLE001  # user code may raise anything
        os.write(writing, f"{type(error).__name__}: {error}".encode()[:_MAX_REPORT])
    finally:
        os._exit(code)
