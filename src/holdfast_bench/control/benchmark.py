"""Load of one coordinator with many agents: how soon it handles a status, and what that costs it.

The coordinator is a process of its own. Each agent has joined with a token, has a certificate and a
TCP connection of its own over loopback, and is the real state machine with workers that are only
played. A few processes play all of them, on the cores of the coordinator, which makes a delay
longer than it would be with hosts of their own. A delay is the time from sending a status to having
its answer: one status in 25 says that its agent has missed the newest desired state.

Then a worker exits, and an agent without a connection is lost: the time until all others train.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from holdfast.errors import HoldfastError
from holdfast.launch.child import Child
from holdfast.rundir.follow import JsonTail
from holdfast.rundir.run_directory import EVENTS, TOKEN
from holdfast_bench.arguments import count, counts
from holdfast_bench.lone_coordinator import LoneCoordinator
from holdfast_bench.results.result import Measured

PROCESSES: Final = 2
"""Processes that play agents."""
DEADLINE_S: Final = 120.0
SETTLE_S: Final = 6.0
"""Time between two measurements."""
END_TIMEOUT_S: Final = 10.0


class _Played:
    """A process that plays some of the agents."""

    def __init__(self, coordinator: LoneCoordinator, folder: Path, **options: object) -> None:
        near, far = socket.socketpair()
        self._connection = near
        with far:
            words = {
                "coordinator": coordinator.endpoint.public,
                "token-file": folder / TOKEN,
                "fd": far.fileno(),
                **{name.replace("_", "-"): value for name, value in options.items()},
            }
            log = folder / "agents.log"
            module = "holdfast_bench.control.agents"
            self._child = Child.start(module, words, log, [far.fileno()])
        near.settimeout(DEADLINE_S)
        self._lines = near.makefile("rb")

    def close(self) -> None:
        self._lines.close()
        self._connection.close()
        self._child.close(END_TIMEOUT_S)

    def tell(self, command: str) -> None:
        self._connection.sendall(json.dumps({"do": command}).encode() + b"\n")

    def hear(self, kind: str) -> dict[str, Any]:
        """The next report of a kind; earlier ones of others are dropped."""
        while line := self._lines.readline():
            report: dict[str, Any] = json.loads(line)
            if kind in report:
                return report
        raise HoldfastError(f"a process of agents has ended: {self._child.last_output_line()}")


class _Cluster:
    """A coordinator and its agents, all of which have joined."""

    def __init__(self, folder: Path, agents: int, heartbeat_s: float) -> None:
        self._owned = ExitStack()
        keys = {
            "workers": agents,
            "hosts": agents,
            "batch": agents,
            "shards": agents,
            "heartbeat": {"interval_s": heartbeat_s},
            "checkpoint": {"every_steps": 0},
        }
        self.coordinator = LoneCoordinator(folder, keys, agents)
        self._owned.callback(self.coordinator.close)
        self._events = JsonTail(folder / EVENTS)
        shares = [range(place, agents, PROCESSES) for place in range(min(agents, PROCESSES))]
        self.played: list[_Played] = []
        for place, share in enumerate(shares):
            played = _Played(
                self.coordinator,
                folder,
                first=place,
                agents=len(share),
                heartbeat_s=heartbeat_s,
            )
            self._owned.callback(played.close)
            self.played.append(played)
        for each, share in zip(self.played, shares, strict=True):
            while (joined := each.hear("joined")["joined"]) < len(share):
                print(f"joined: about {joined * len(shares)} of {agents}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def tell(self, command: str) -> None:
        """Have all processes do something."""
        for each in self.played:
            each.tell(command)

    def begin(self) -> float:
        """Connect all agents; returns the seconds until they train."""
        began = time.monotonic()
        self.tell("connect")
        return self._resumed_at() - began

    def counted(self) -> tuple[int, int, list[float]]:
        """Statuses so far, streams that broke, and the delays since the last call."""
        self.tell("count")
        reports = [each.hear("counted") for each in self.played]
        delays = [delay for report in reports for delay in report["delays"]]
        return sum(r["counted"] for r in reports), sum(r["broken"] for r in reports), delays

    def disturb(self, command: str) -> tuple[str, float]:
        """Have one agent do something; returns it, and the seconds until the others train."""
        self.played[0].tell(command)
        began = self.played[0].hear("began")
        return began["host"], self._resumed_at() - began["began"]

    def suspected(self, *besides: str) -> tuple[int, int]:
        """How often hosts were probed, and lost, since the last call, without some hosts."""
        found = [each for each in self._events() if each.get("host") not in besides]
        names = [each["event"] for each in found]
        return names.count("host-probed"), names.count("host-lost")

    def _resumed_at(self) -> float:
        return max(float(each.hear("resumed")["at"]) for each in self.played)


def measure(agents: int, heartbeat_s: float, seconds: float) -> dict[str, Any]:
    """Measure with one number of agents."""
    print(f"{agents} agents", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory() as name,
        _Cluster(Path(name) / "run", agents, heartbeat_s) as cluster,
    ):
        start_s = cluster.begin()
        time.sleep(SETTLE_S)
        cluster.suspected()
        sent, broken, _ = cluster.counted()
        cpu_s = cluster.coordinator.cpu_s()
        began = time.monotonic()
        time.sleep(seconds)
        elapsed_s = time.monotonic() - began
        cpu_s = cluster.coordinator.cpu_s() - cpu_s
        sent_after, broken_after, delays = cluster.counted()
        statuses = sent_after - sent
        probed, lost = cluster.suspected()
        _, worker_s = cluster.disturb("fail")
        time.sleep(SETTLE_S)
        host, host_s = cluster.disturb("kill")
        time.sleep(SETTLE_S)
        probed_then, lost_then = cluster.suspected(host)
    if len(delays) < 2:
        raise HoldfastError("too few statuses were answered; give more --seconds, or --agents")
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    return {
        "agents": agents,
        "heartbeat_s": heartbeat_s,
        "seconds": round(elapsed_s, 1),
        "statuses_per_s": round(statuses / elapsed_s, 1),
        "delays": len(delays),
        "delay_p50_ms": round(1000 * statistics.median(delays), 2),
        "delay_p99_ms": round(1000 * cuts[98], 2),
        "delay_max_ms": round(1000 * max(delays), 2),
        "coordinator_cpu": round(cpu_s / elapsed_s, 3),
        "cpu_per_status_ms": round(1000 * cpu_s / statuses, 3),
        "probed": probed,
        "lost": lost,
        "broken": broken_after - broken,
        "start_s": round(start_s, 2),
        "worker_exits_s": round(worker_s, 2),
        "host_lost_s": round(host_s, 2),
        "probed_then": probed_then,
        "lost_then": lost_then,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--agents", type=counts, default="100,300,1000", help="Numbers of agents.")
    parser.add_argument("--heartbeat-s", type=float, default=1.0, help="Heartbeat interval.")
    parser.add_argument("--seconds", type=count, default=60, help="Seconds that each row measures.")


def run(options: argparse.Namespace) -> Measured:
    """Measure every number of agents."""
    rows = [measure(agents, options.heartbeat_s, options.seconds) for agents in options.agents]
    return Measured(rows=rows)
