"""How long a blocked worker takes to leave its wait once its generation is over.

Each round forks workers that block in one kind of wait that never ends, announces the next
generation after a random pause, and reads from each worker when it left the wait. One clock,
CLOCK_MONOTONIC, serves all processes of a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import numpy as np
import torch

from holdfast.arena.memory import Arena
from holdfast.collectives.barrier_tags import ReduceTag, describe
from holdfast.collectives.shared_memory import SharedMemoryGroup
from holdfast.core.step.plan import WorkItem
from holdfast.data.dataset import Batch
from holdfast.data.loading.loader import Loader
from holdfast.data.loading.order import SampleOrder
from holdfast.data.permutation import Indices
from holdfast.errors import Aborted
from holdfast.job.settings import LoaderSettings
from holdfast.linux.lifeline import die_with_parent
from holdfast.wire.channel import pair
from holdfast.worker.checkpoints.saver import Results

ROUND_TIMEOUT_S: Final = 60.0


class _NeverRead:
    """A data set whose samples do not come."""

    fingerprint = "never"
    reads_ahead = True

    def __len__(self) -> int:
        return 1

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        threading.Event().wait(ROUND_TIMEOUT_S)
        return (indices, generator)


def _group(arena: Arena, rank: int) -> SharedMemoryGroup:
    return SharedMemoryGroup(arena, rank, ROUND_TIMEOUT_S, describe)


def _in_barrier(arena: Arena, rank: int) -> None:
    _group(arena, rank).barrier(ReduceTag.PARTIALS, 0)


def _for_samples(arena: Arena, rank: int) -> None:
    order = SampleOrder(
        num_samples=1, batch_size=1, num_shards=1, epochs=1, seed=rank, fingerprint="never"
    )
    unit = WorkItem(0, range(1))
    ahead = LoaderSettings(prefetch=1)
    loader = Loader(_NeverRead(), order, [unit], settings=ahead, check_abort=arena.check_abort)
    loader.take(0, unit)


def _for_checkpoint(arena: Arena, rank: int) -> None:
    near, far = pair()
    Results(near, _group(arena, rank), ROUND_TIMEOUT_S).of(1)
    far.close()


WAITS: Final[dict[str, Callable[[Arena, int], None]]] = {
    "barrier": _in_barrier,
    "samples": _for_samples,
    "checkpoint": _for_checkpoint,
}


def measure(wait: Callable[[Arena, int], None], workers: int, pause_s: float) -> list[float]:
    """One round; returns the seconds that each worker took to leave `wait`."""
    with closing(Arena.create(workers + 1)) as arena:  # rank 0 never comes
        hold = os.pipe()  # no worker exits, which takes a core, before all have left their wait
        pipes = [_fork(wait, arena, rank, hold) for rank in range(1, workers + 1)]
        for ready, _ in pipes:
            os.read(ready, 1)
        time.sleep(pause_s)
        began = time.monotonic_ns()
        arena.announce(1)
        times = [struct.unpack("q", os.read(ready, 8))[0] for ready, _ in pipes]
        os.close(hold[0])
        os.close(hold[1])
        for ready, pid in pipes:
            os.close(ready)
            os.waitpid(pid, 0)
    return [(ended - began) / 1e9 for ended in times]


def _fork(
    wait: Callable[[Arena, int], None], arena: Arena, rank: int, hold: tuple[int, int]
) -> tuple[int, int]:
    ready, done = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            os.close(hold[1])
            os.write(done, b"r")
            wait(arena, rank)
        except Aborted:
            os.write(done, struct.pack("q", time.monotonic_ns()))
            os.read(hold[0], 1)
        finally:
            os._exit(0)
    os.close(done)
    return ready, pid


def report(workers: int, rounds: int, seed: int) -> dict[str, Any]:
    """Milliseconds to leave each kind of wait: median, 99th percentile and maximum."""
    draw = random.Random(seed)
    rows = []
    for name, wait in WAITS.items():
        seconds = [
            second
            for _ in range(rounds)
            for second in measure(wait, workers, 0.02 + 0.02 * draw.random())
        ]
        row = {
            "wait": name,
            "median_ms": round(1e3 * statistics.median(seconds), 3),
            "p99_ms": round(1e3 * float(np.quantile(seconds, 0.99)), 3),
            "max_ms": round(1e3 * max(seconds), 3),
        }
        rows.append(row)
    return {"benchmark": "wake", "workers": workers, "rounds": rounds, "rows": rows}


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    json.dump(report(options.workers, options.rounds, options.seed), sys.stdout)
    print()


if __name__ == "__main__":
    main()
