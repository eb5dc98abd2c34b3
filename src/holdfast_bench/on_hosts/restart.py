"""From a fault on one of several hosts to the next step of all workers of a script.

    worker   one worker is killed
    agent    the agent of a host is killed, and its workers with it
    host     a host is cut off for half a minute, without a FIN; the time begins when it is back

The script is the one of `holdfast_bench.restart`, under `holdfast run` and under torchrun, whose
agents are started again whenever they exit. The hosts are network namespaces of this machine (root
and iproute2).
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.core.placement.replacing import MAX_REJOIN_DELAY_S
from holdfast.launch.control import name_of
from holdfast_bench.launch import Injury, PeerLaunch, ProcessSpec, recover
from holdfast_bench.on_hosts.namespaces import Namespaces, namespaces
from holdfast_bench.peers import peer_script
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.rounds import attempt, in_rounds
from holdfast_bench.trial import FAULT_STEP

WORKERS_PER_HOST: Final = 2
CUT_S: Final = 30.0
"""How long a host is cut off: longer than TCP repeats a packet often."""
START_S: Final = 10.0
"""About how long it takes until hosts have joined."""
RESTART_TIMEOUT_S: Final = 120.0
"""A restart that takes longer has failed."""
FAULTY_HOST: Final = 2
AGENT: Final = name_of("holdfast.agent.main")
"""The name of the processes of holdfast's agents, some of which are forks of other processes."""
TORCHRUN: Final = ("torch.distributed.run", peer_script.__file__)
"""torchrun's agents and workers; the workers of holdfast end with their agent."""

Row = dict[str, Any]


class _ScriptRun:
    """One run of the script on some hosts.

    Args:
        hosts: The hosts.
        folder: On a disk that they share.
        workload: What is trained.
    """

    def __init__(self, hosts: Namespaces, folder: Path, workload: str) -> None:
        self._hosts = hosts
        self._folder = folder
        self._script = [peer_script.__file__, "--workload", workload, "--dir", str(folder)]
        self._ranks = range(WORKERS_PER_HOST * len(hosts.numbers))

    def holdfast(self) -> list[ProcessSpec]:
        """The commands of `holdfast run`."""
        hosts = self._hosts
        run = self._folder / "run"
        holdfast = [sys.executable, "-m", "holdfast"]
        size = ["--nnodes", len(hosts.numbers), "--nproc-per-node", WORKERS_PER_HOST]
        first = ["run", *size, "--address", hosts.address(1), "--run", run, *self._script]
        token = run / "secrets" / "join.token"
        join = ["agent", "--join", f"{hosts.address(1)}:50051", "--token-file", token]
        agent = shlex.join([*holdfast, *map(str, join)])
        wait = f"while ! test -e {shlex.quote(str(token))}; do sleep 0.05; done; exec {agent}"
        return [
            ProcessSpec(arguments=hosts.command(1, *holdfast, *first)),
            *(
                ProcessSpec(arguments=hosts.command(number, "sh", "-c", wait))
                for number in hosts.numbers[1:]
            ),
        ]

    def torchrun(self) -> list[ProcessSpec]:
        """The commands of torchrun, with the settings of `holdfast_bench.restart`."""
        hosts = self._hosts
        size = ["--nnodes", len(hosts.numbers), "--nproc-per-node", WORKERS_PER_HOST]
        store = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.address(1)}:29500"]
        options = [*size, *store, "--max-restarts", 20, *self._script]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *options]
        environment = {
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        return [
            ProcessSpec(
                arguments=hosts.command(number, *torchrun),
                environment=environment,
                relaunched=number > 1,
            )
            for number in hosts.numbers
        ]

    def restart_s(self, way: str, fault: str, chance: random.Random) -> float:
        """Run it with a fault; returns seconds until all workers have done a step.

        Raises:
            HoldfastError: They have not started, or not restarted.
        """
        commands = {"run": self.holdfast, "torchrun": self.torchrun}[way]()
        # hosts lost sooner wait to join again
        least_s = MAX_REJOIN_DELAY_S if fault == "host" else 0.0
        workers = len(self._ranks)
        with PeerLaunch(commands, self._folder) as launch:
            launch.wait_for_steps(FAULT_STEP, workers, START_S + least_s)
            inject = partial(self._inject, fault, chance)
            return recover(launch, inject, RESTART_TIMEOUT_S, workers).committed_s

    def _inject(self, fault: str, chance: random.Random, launch: PeerLaunch) -> Injury:
        if fault == "host":
            self._hosts.cut(FAULTY_HOST)
            time.sleep(CUT_S)
            self._hosts.heal(FAULTY_HOST)
            return Injury(at_s=time.monotonic(), cut=True)
        time.sleep(chance.random() / 10)
        killed = (
            [launch.steps(chance.choice(self._ranks))[-1]["pid"]]
            if fault == "worker"
            else _agents_among(self._hosts.processes(FAULTY_HOST))
        )
        at_s = time.monotonic()
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return Injury(at_s=at_s, killed=killed)


def _agents_among(pids: list[int]) -> list[int]:
    """The processes of agents."""
    found = []
    for pid in pids:
        with suppress(OSError):  # it has ended
            line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
            if name == AGENT or any(word in line for word in TORCHRUN):
                found.append(pid)
    return found


def rows(workload: str, num_hosts: int, rounds: int, seed: int) -> list[Row]:
    """A row per fault and system."""
    if missing := Namespaces.what_is_missing():
        print(f"--hosts is left out: {missing}", file=sys.stderr)
        return []
    chance = random.Random(seed)
    return [
        row
        for fault in ("worker", "agent", "host")
        for row in _rows_of(fault, workload, num_hosts, rounds, chance)
    ]


def _rows_of(
    fault: str, workload: str, num_hosts: int, rounds: int, chance: random.Random
) -> list[Row]:
    ways = {
        way: partial(attempt, partial(_once, way, fault, workload, num_hosts, chance), way)
        for way in ("run", "torchrun")
    }
    seconds = in_rounds(ways, rounds, f"{workload}, {fault}")
    return [
        {"fault": fault, "way": way, **restarts(tries, seconds["torchrun"])}
        for way, tries in seconds.items()
    ]


def _once(way: str, fault: str, workload: str, num_hosts: int, chance: random.Random) -> float:
    """Seconds that one restart took.

    Raises:
        HoldfastError: It failed.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shared = Path(folder) / "shared"
        shared.mkdir()
        with namespaces(Path(folder), num_hosts) as hosts:
            return _ScriptRun(hosts, shared, workload).restart_s(way, fault, chance)


def restarts(tries: Sequence[float | None], others: Sequence[float | None]) -> Row:
    """The columns of a row about restarts; None is one that failed.

    Args:
        tries: Seconds of each restart.
        others: Those of the system to compare with.
    """
    done = [each for each in tries if each is not None]
    pairs = [
        (other, own) for other, own in zip(others, tries, strict=True) if own and other is not None
    ]
    return {
        "restart_s": spread(done, 3) if done else None,
        "restarts": f"{len(done)} of {len(tries)}",
        "times_faster": ratio(*zip(*pairs, strict=True)) if pairs else None,
    }
