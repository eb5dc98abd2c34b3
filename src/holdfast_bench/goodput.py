"""Goodput under faults: how many samples count if a worker is killed every few seconds.

Each run trains without faults for one interval, and then with a kill at the end of each of the next
ones. A step that is computed again counts once. The result is the rate with faults as a share of
the rate without.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.arena.memory import Arena
from holdfast.errors import HoldfastError
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS
from holdfast_bench.faulted_run import WORKERS, FaultedRun
from holdfast_bench.peers.faulted_script import START_TIMEOUT_S, LaunchedProcesses
from holdfast_bench.peers.systems import Peer

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


class _RepeatedKills(FaultedRun):
    """Kills one of the workers again and again.

    Attributes:
        goodput: The rate with kills as a share of that without.
    """

    goodput = 0.0

    def inject(self, arena: Arena) -> None:  # noqa: ARG002  # events say enough
        began = time.time()
        self._pass()
        for _ in range(KILLS):
            started = {e["rank"]: e["pid"] for e in self.events("worker-started")}
            os.kill(started[self.chance.randrange(WORKERS)], signal.SIGKILL)
            self._pass()
        commits = [
            (line["time_unix_s"], line["samples"])
            for line in json_lines.read(self.run_dir / METRICS)
            if "loss" in line
        ]
        self.goodput = _share(commits, began)

    def _pass(self) -> None:
        until = time.monotonic() + EVERY_S
        self.wait(lambda: time.monotonic() >= until)


def of_holdfast(workload: str, chance: random.Random) -> Goodput:
    """The goodput of holdfast."""
    run = _RepeatedKills(chance)
    run.run(workload)
    return Goodput(run.goodput, KILLS)


def of_peer(peer: Peer, python: str, workload: str, chance: random.Random) -> Goodput:
    """The goodput of another system.

    Raises:
        HoldfastError: The workers did not start, or the launcher has exited.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        commands = peer.commands(python, ["--workload", workload, "--dir", folder])
        with LaunchedProcesses(commands, Path(folder)) as launch:

            def is_warm() -> bool:
                return all(len(launch.steps(rank)) >= WARM_STEPS for rank in range(WORKERS))

            if not launch.wait(is_warm, START_TIMEOUT_S):
                raise HoldfastError(f"no steps of {peer.name} within {START_TIMEOUT_S:.0f} s")
            began = time.monotonic()
            kills = 0
            _pass(launch)
            for _ in range(KILLS):
                rank = chance.randrange(WORKERS)
                with suppress(ProcessLookupError):
                    os.kill(launch.steps(rank)[-1]["pid"], signal.SIGKILL)
                    kills += 1
                _pass(launch)
            steps = [
                {**step, "rank": rank} for rank in range(WORKERS) for step in launch.steps(rank)
            ]
    return Goodput(_share(_counted(steps), began), kills)


def _pass(launch: LaunchedProcesses) -> None:
    launch.wait(lambda: False, EVERY_S)


def _counted(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """When each part of a step was first done; parts that are computed again do not count."""
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
