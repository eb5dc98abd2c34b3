"""Goodput under faults: how many samples count if a worker is killed every few seconds.

Each run trains without faults for one interval, and then with a kill at the end of each of the next
ones. A step that is computed again counts once. The result is the rate with faults as a share of
the rate without.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast_bench.peers.systems import Peer
from holdfast_bench.trial import WORKERS, LiveRun, injure

EVERY_S: Final = 15.0
"""Seconds from one kill to the next."""
KILLS: Final = 4
WARM_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class Goodput:
    """The result of one run.

    Attributes:
        share: The rate with kills as a share of the rate without.
        kills: Workers that were killed; one that has not come back is not killed again.
    """

    share: float
    kills: int


def of_holdfast(workload: str, chance: random.Random) -> Goodput:
    """The goodput of holdfast."""
    return injure(workload, chance, partial(_kill_again_and_again, chance))


def _kill_again_and_again(chance: random.Random, live: LiveRun) -> Goodput:
    def pass_interval() -> None:
        until = time.monotonic() + EVERY_S
        live.wait(lambda: time.monotonic() >= until)

    began = time.time()
    pass_interval()
    for _ in range(KILLS):
        os.kill(live.records.pid_of(chance.randrange(WORKERS)), signal.SIGKILL)
        pass_interval()
    commits = [(line["time_unix_s"], line["samples"]) for line in live.records.steps()]
    return Goodput(_share(commits, began), KILLS)


def of_peer(peer: Peer, python: str, workload: str, chance: random.Random) -> Goodput:
    """The goodput of another system.

    Raises:
        HoldfastError: The workers did not start, or the launcher has exited.
    """
    with peer.launched(python, workload, WARM_STEPS) as launch:
        began = time.monotonic()
        kills = 0
        launch.wait(lambda: False, EVERY_S)
        for _ in range(KILLS):
            rank = chance.randrange(WORKERS)
            with suppress(ProcessLookupError):
                os.kill(launch.steps(rank)[-1]["pid"], signal.SIGKILL)
                kills += 1
            launch.wait(lambda: False, EVERY_S)
        steps = [{**step, "rank": rank} for rank in range(WORKERS) for step in launch.steps(rank)]
    return Goodput(_share(_counted(steps), began), kills)


def _counted(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """The first time that each part of a step was done; one that is computed again counts once."""
    first: dict[tuple[int, int], float] = {}
    for step in steps:
        key = int(step["step"]), int(step["rank"])
        first[key] = min(first.get(key, float("inf")), float(step["ended"]))
    return [(ended, 1) for ended in first.values()]


def _share(commits: Sequence[tuple[float, int]], began: float) -> float:
    """The rate in the intervals with kills as a share of the rate in the first."""
    first_kill = began + EVERY_S
    end = first_kill + KILLS * EVERY_S
    without = sum(count for at, count in commits if began <= at < first_kill) / EVERY_S
    with_faults = sum(count for at, count in commits if first_kill <= at < end) / (KILLS * EVERY_S)
    if not without:
        raise HoldfastError("no step was committed before the first kill")
    return with_faults / without
