"""Floors: no system can be faster than this with a state of some size.

    copy          all workers at once copy their shares of it to shared memory that is warm
    write         it is written to the disk past the page cache, and synced
    read          it is read from there, once the page cache has forgotten it
    direct_read   the same, past the page cache

These are bounds on the stall of a save, the time until it is durable, and the time of a load.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from holdfast.arena.pages import HUGE_PAGE, map_file, populate
from holdfast_bench.checkpoint.disk import forget, raw_block, read_raw, write_raw
from holdfast_bench.results.figures import spread

REPETITIONS: Final = 5
TIMEOUT_S: Final = 60.0


def row(folder: Path, workload: str, workers: int, size_bytes: int) -> dict[str, Any]:
    """The floors of a workload.

    Args:
        folder: On the disk that is measured.
        workload: Its name.
        workers: How many copy at once.
        size_bytes: Of the state.
    """
    taken = {"copy": _copy(workers, size_bytes), **_transfer(folder, size_bytes)}
    return {
        "measure": "floors",
        "workload": workload,
        "workers": workers,
        "state_mb": round(size_bytes / 1e6),
        **{f"{name}_ms": spread([1e3 * s for s in seconds]) for name, seconds in taken.items()},
    }


def _transfer(folder: Path, size_bytes: int) -> dict[str, list[float]]:
    """Seconds of each transfer to and from the disk, by its name."""
    taken: dict[str, list[float]] = {"write": [], "read": [], "direct_read": []}
    with tempfile.TemporaryDirectory(dir=folder) as scratch, raw_block() as block:
        for number in range(REPETITIONS):
            path = Path(scratch) / str(number)
            taken["write"].append(_seconds(partial(write_raw, path, size_bytes, block)))
            for name in ("read", "direct_read"):
                forget(Path(scratch))
                read = partial(read_raw, path, block, direct=name != "read")
                taken[name].append(_seconds(read))
            path.unlink()
    return taken


def _copy(workers: int, size_bytes: int) -> Sequence[float]:
    """Seconds of each repetition, of the slowest worker."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(workers)
    taken: SimpleQueue[list[float]] = context.SimpleQueue()
    share = -(-size_bytes // workers)
    processes = [
        context.Process(target=_copy_share, args=(share, start, taken), daemon=True)
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    times = [taken.get() for _ in processes]
    for process in processes:
        process.join()
    return [max(each) for each in zip(*times, strict=True)]


def _copy_share(size_bytes: int, start: Barrier, taken: SimpleQueue[list[float]]) -> None:
    """Copy so many bytes again and again, each time with the other workers."""
    source = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    source.write(os.urandom(1) * size_bytes)
    fd = os.memfd_create("holdfast-bench", os.MFD_CLOEXEC)
    os.ftruncate(fd, -(-size_bytes // HUGE_PAGE) * HUGE_PAGE)
    target = map_file(fd, size_bytes, 0)
    address, place = (
        ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (source, target)
    )
    populate(place, size_bytes)
    ctypes.memmove(place, address, size_bytes)
    times = list[float]()
    for _ in range(REPETITIONS):
        start.wait(TIMEOUT_S)
        times.append(_seconds(lambda: ctypes.memmove(place, address, size_bytes)))
    taken.put(times)


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
