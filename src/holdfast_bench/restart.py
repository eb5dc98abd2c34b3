"""From the failure of a worker of a DDP job to the next step of all restarted workers.

    ddp        holdfast's own job with `sync: ddp`
    run        the script `holdfast_bench.peers.peer_script`, for torchrun, under `holdfast run`
    torchrun   the same script under torchrun, with the settings under which its restarts are
               reliable: a new store for every attempt

Each run trains with two workers and writes a checkpoint every ten steps; one worker is killed at a
random moment of a step. The time ends when both have committed a step in their new processes.
`--hosts` measures several hosts in its place; see `holdfast_bench.on_hosts.restart`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from holdfast_bench.arguments import add_names, add_rounds, count
from holdfast_bench.launch import ProcessSpec
from holdfast_bench.on_hosts import restart as on_hosts
from holdfast_bench.peers import peer_script
from holdfast_bench.peers.systems import TORCHRUN, Peer
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import attempt, in_rounds
from holdfast_bench.trial import WORKERS, LiveRun, injure
from holdfast_bench.workloads import WORKLOADS

RESTART_TIMEOUT_S: Final = 60.0
"""A restart that takes longer has failed."""


def _holdfast_run(python: str, options: Sequence[str]) -> list[ProcessSpec]:
    command = [python, "-m", "holdfast", "run", "--workers", str(WORKERS)]
    return [ProcessSpec(arguments=[*command, peer_script.__file__, *options])]


LAUNCHERS: Final = {
    "run": Peer(name="holdfast run", modules=(), commands=_holdfast_run),
    "torchrun": TORCHRUN,
}
"""What launches the script."""


def restart_ddp(workload: str, chance: random.Random) -> float:
    """Seconds that a job with `sync: ddp` takes to restart.

    Raises:
        HoldfastError: It did not restart.
    """
    keys = {"sync": "ddp", "checkpoint": {"every_steps": peer_script.EVERY}}
    return injure(workload, chance, partial(kill, chance), **keys)


def kill(chance: random.Random, live: LiveRun) -> float:
    """Kill one of the workers; returns the seconds until all have committed a step since."""
    killed = chance.randrange(WORKERS)
    generation = live.arena.newest_generation
    began = time.monotonic()
    os.kill(live.records.pid_of(killed), signal.SIGKILL)
    live.wait(lambda: live.newest_start()["number"] > generation, RESTART_TIMEOUT_S)
    begun_from = live.newest_start()["step"]
    for rank in range(WORKERS):  # until then its words are those of the process before
        live.wait_for_work(rank, RESTART_TIMEOUT_S)
    live.wait(lambda: min(live.committed()) > begun_from, RESTART_TIMEOUT_S)
    return time.monotonic() - began


def restart_script(launcher: str, workload: str, chance: random.Random) -> float:
    """Seconds that the script takes to restart under a launcher.

    Raises:
        HoldfastError: It did not restart.
    """
    recover = LAUNCHERS[launcher].recover
    number = signal.SIGKILL
    return recover(sys.executable, workload, number, chance, RESTART_TIMEOUT_S).committed_s


def measure(workload: str, rounds: int, seed: int) -> list[dict[str, Any]]:
    """One row per system."""
    chance = random.Random(seed)
    ways = {"ddp": partial(restart_ddp, workload, chance)}
    ways |= {name: partial(restart_script, name, workload, chance) for name in LAUNCHERS}
    attempts = {name: partial(attempt, restart, name) for name, restart in ways.items()}
    seconds = in_rounds(attempts, rounds, workload)
    return [
        {"workload": workload, "way": way, **on_hosts.restarts(tries, seconds["torchrun"])}
        for way, tries in seconds.items()
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train", "small")
    add_rounds(parser, 10)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the moments of faults.")
    parser.add_argument(
        "--hosts",
        type=count,
        default=1,
        help="Number of hosts; several are network namespaces (root).",
    )


def run(options: argparse.Namespace) -> Measured:
    """Measure every workload, on one host or on several."""
    rows = [
        row
        for workload in options.workloads
        for row in (
            measure(workload, options.rounds, options.seed)
            if options.hosts == 1
            else on_hosts.rows(workload, options.hosts, options.rounds, options.seed)
        )
    ]
    return Measured(rounds=options.rounds, rows=rows)
