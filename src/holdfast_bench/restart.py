"""From the failure of a worker of a DDP job to the next step of all restarted workers.

    ddp        holdfast's own job with `sync: ddp`
    run        a plain script for torchrun (`bench.peers.launched`), under `holdfast run`
    torchrun   the same script under torchrun, with the settings under which its restarts are
               reliable: a new store for every attempt

Each run trains with two workers and writes a checkpoint every ten steps; one worker is killed at a
random moment of a step. The time ends when both have committed a step in their new processes.
`--hosts` measures several hosts in its place; see `bench.on_hosts.restart`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.arena.memory import Arena
from holdfast.errors import HoldfastError
from holdfast_bench.arguments import count, parser_of
from holdfast_bench.faulted_run import WORKERS, FaultedRun, min_committed
from holdfast_bench.on_hosts import restart as on_hosts
from holdfast_bench.peers import launched
from holdfast_bench.peers.faulted_script import ProcessSpec, time_recovery
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.workloads import WORKLOADS

RESTART_TIMEOUT_S: Final = 60.0
"""A restart that takes longer has failed."""

_TORCHRUN: Final = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
LAUNCHERS: Final[Mapping[str, Sequence[str]]] = {
    "run": ["holdfast", "run", "--workers", str(WORKERS)],
    "torchrun": [*_TORCHRUN, "--max-restarts", "20"],
}
"""The modules that launch the script, with their options."""


class _KillDdpWorker(FaultedRun):
    """Kills one of the workers.

    Attributes:
        seconds: Until all have committed a step since.
    """

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.seconds = 0.0

    def inject(self, arena: Arena) -> None:
        killed = self.chance.randrange(WORKERS)
        generation = arena.newest_generation
        began = time.monotonic()
        os.kill(self.pid_of(killed), signal.SIGKILL)
        self.wait(
            lambda: self.events("generation-started")[-1]["number"] > generation, RESTART_TIMEOUT_S
        )
        begun_from = self.events("generation-started")[-1]["step"]
        for rank in range(WORKERS):  # until then its words are those of the process before
            self.wait_for_work(arena, rank, RESTART_TIMEOUT_S)
        self.wait(lambda: min_committed(arena) > begun_from, RESTART_TIMEOUT_S)
        self.seconds = time.monotonic() - began


def restart_ddp(workload: str, chance: random.Random) -> float:
    """Seconds that a job with `sync: ddp` takes to restart.

    Raises:
        HoldfastError: It did not restart.
    """
    run = _KillDdpWorker(chance)
    run.run(workload, sync="ddp", checkpoint={"every_steps": launched.EVERY})
    return run.seconds


def restart_script(launcher: str, workload: str, chance: random.Random) -> float:
    """Seconds that the script takes to restart under a launcher.

    Raises:
        HoldfastError: It did not restart.
    """
    with tempfile.TemporaryDirectory() as folder:
        module, *options = LAUNCHERS[launcher]
        script = [launched.__file__, "--workload", workload, "--dir", folder]
        command = ProcessSpec(
            arguments=[sys.executable, "-m", module, *options, *script],
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )
        recovery = time_recovery([command], Path(folder), signal.SIGKILL, chance, RESTART_TIMEOUT_S)
    if "committed" not in recovery.seconds:
        raise HoldfastError(f"no step of both workers within {RESTART_TIMEOUT_S:.0f} s")
    return recovery.seconds["committed"]


def measure(workload: str, ways: Sequence[str], rounds: int, seed: int) -> list[dict[str, Any]]:
    """One row per system."""
    chance = random.Random(seed)
    seconds = dict[str, list[float | None]]()
    for number in range(rounds):
        print(f"{workload}, round {number + 1}", file=sys.stderr)
        for way in ways:
            seconds.setdefault(way, []).append(_once(way, workload, chance))
    return [_row(workload, way, tries, seconds["torchrun"]) for way, tries in seconds.items()]


def _once(way: str, workload: str, chance: random.Random) -> float | None:
    """Seconds; None if the restart failed."""
    try:
        if way == "ddp":
            return restart_ddp(workload, chance)
        return restart_script(way, workload, chance)
    except HoldfastError as error:
        print(f"{way} failed: {error}", file=sys.stderr)
        return None


def _row(
    workload: str, way: str, tries: Sequence[float | None], theirs: Sequence[float | None]
) -> dict[str, Any]:
    done = [seconds for seconds in tries if seconds is not None]
    pairs = [
        (other, own) for other, own in zip(theirs, tries, strict=True) if own and other is not None
    ]
    return {
        "workload": workload,
        "way": way,
        "restart_s": spread(done, 3) if done else None,
        "restarts": f"{len(done)} of {len(tries)}",
        "times_faster": ratio(*zip(*pairs, strict=True)) if pairs else None,
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--workloads",
        default="small",
        help="Workloads, with commas: small, large, lm, vit, vit-bf16.",
    )
    parser.add_argument("--rounds", type=count, default=10, help="Number of measurements.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the moments of faults.")
    parser.add_argument(
        "--hosts",
        type=count,
        default=1,
        help="Number of hosts; several are network namespaces (root).",
    )
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    ways = ["ddp", *LAUNCHERS]
    rows = [
        row
        for workload in options.workloads.split(",")
        for row in (
            measure(workload, ways, options.rounds, options.seed)
            if options.hosts == 1
            else on_hosts.rows(workload, options.hosts, options.rounds, options.seed)
        )
    ]
    print(json.dumps({"benchmark": "restart", "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
