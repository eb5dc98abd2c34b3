"""Loading: how long it takes until a saved state is in the memory of one worker, and verified.

Every system reads files that are not in the page cache into tensors that exist, in one process that
may use all cores. holdfast compares every byte with its digest; the others do not notice damage.
The floor is the faster of two ways to read no more than the file: with the kernel's read-ahead, or
past the page cache.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from holdfast.arena.tensors import views
from holdfast.checkpoint import parts
from holdfast.checkpoint.reader import load_state
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import HoldfastError
from holdfast.launch.fork_client import ForkServer
from holdfast.runs.run import LaunchOptions
from holdfast_bench.checkpoint.disk import forget, raw_block, read_raw
from holdfast_bench.checkpoint.savers import State, load_into, saver_of
from holdfast_bench.checkpoint.state_task import state_job
from holdfast_bench.peers.peer_script import join_group
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.rounds import in_rounds
from holdfast_bench.trial import train

RAW: Final = ("read", "direct read")
OURS: Final = "holdfast"
PEERS: Final = ("torch", "safetensors", "dcp")

_Ways = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A checkpoint of holdfast, and memory for its state.

    Attributes:
        store: Holds it.
        name: Its name.
        flat: uint8[size_bytes]; holds the state.
        state: The tensors in `flat`.
    """

    store: CheckpointStore
    name: str
    flat: torch.Tensor
    state: State

    @property
    def digest(self) -> str:
        """Bytes of the state."""
        return parts.digest(self.flat.numpy().data, parts.DigestKind.XXH3)

    def load(self) -> None:
        """Load it as a worker does that resumes."""
        load_state(self.store, self.name, self.store.manifest(self.name), self.flat.numpy().data)

    def read_raw(self, block: memoryview, *, direct: bool) -> None:
        """Only read its files."""
        for path in Path(self.store.location(self.name)).glob("*.safetensors"):
            read_raw(path, block, direct=direct)


def rows(folder: Path, forks: ForkServer, state_mb: int, rounds: int) -> list[dict[str, Any]]:
    """One row per system.

    Args:
        folder: On the disk that is measured.
        forks: For the worker that writes holdfast's checkpoint.
        state_mb: The size of the state, megabytes.
        rounds: How often each system loads.

    Raises:
        HoldfastError: A system failed, or has loaded something else.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        stack.enter_context(_lone_group(scratch))
        block = stack.enter_context(raw_block())
        keys = state_job(state_mb)
        records = stack.enter_context(train(keys, LaunchOptions(forks=forks), scratch))
        stored = _loaded(records.run_dir)
        ways: _Ways = {raw: partial(stored.read_raw, block, direct=raw != "read") for raw in RAW}
        ways[OURS] = stored.load
        for system in PEERS:
            saver_of(system)(stored.state, scratch / system)
            ways[system] = partial(load_into, system, scratch / system, stored.state)
        loads = {way: partial(_load, scratch, stored, way, load) for way, load in ways.items()}
        taken = in_rounds(loads, rounds, "loading", alternates=True)
    floor = [min(each) for each in zip(*(taken[raw] for raw in RAW), strict=True)]
    return [
        {
            "measure": "loading",
            "system": system,
            "state_mb": round(stored.flat.nbytes / 1e6),
            "verified": "yes" if system == OURS else "no",
            "seconds": spread(seconds, 2),
            "mb_per_s": round(stored.flat.nbytes / 1e6 / spread(seconds, 6)["median"]),
            "speed_of_raw": ratio(floor, seconds),
        }
        for system, seconds in taken.items()
    ]


def _loaded(run_dir: Path) -> _Stored:
    """Load the only checkpoint of a run."""
    store = CheckpointStore.of_run(run_dir)
    (name,) = store.committed()
    layout = store.manifest(name).layout
    flat = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    stored = _Stored(store, name, flat, views(flat, layout))
    stored.load()
    return stored


def _load(scratch: Path, stored: _Stored, system: str, load: Callable[[], object]) -> float:
    """Seconds that a system loads for.

    Raises:
        HoldfastError: It has loaded something else.
    """
    expected = stored.digest
    if system not in RAW:
        stored.flat.zero_()
    forget(scratch)
    began = time.perf_counter()
    load()
    seconds = time.perf_counter() - began
    if stored.digest != expected:
        raise HoldfastError(f"{system} has loaded another state than was saved")
    return seconds


@contextmanager
def _lone_group(folder: Path) -> Iterator[None]:
    """A process group of this process alone, which DCP needs to save."""
    join_group(folder, 0, 1)
    try:
        yield
    finally:
        dist.destroy_process_group()
