"""Cost of heartbeats, and how soon they show that a host is cut off.

The coordinator is a process of its own, with TLS over loopback. Its agents are clients in this
process that send statuses and run no workers. Each connects through a relay, which counts the bytes
in both directions, and which drops them once its host is cut off. A probe is not answered then.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

from holdfast.core.protocol import Status
from holdfast.errors import HoldfastError
from holdfast.rundir.follow import JsonTail
from holdfast.rundir.run_directory import EVENTS
from holdfast.wire.join import control_address, join
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import DesiredStateMessage, Service, StatusMessage
from holdfast_bench.lone_coordinator import LoneCoordinator
from holdfast_bench.results.figures import spread
from holdfast_bench.results.result import Measured

TIMEOUT_INTERVALS: Final = 2
"""The timeout, in intervals, as by default."""
CUTS: Final = 4
"""Hosts that are cut off for each row, one after the other."""
DEADLINE_S: Final = 60.0
_CHUNK: Final = 1 << 16


class _Relay:
    """Forwards the connections of one host, counts their bytes, and drops them once it is cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_bytes = 0
        self.is_cut = False
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self.num_bytes += len(data)
                if not self.is_cut:
                    target.sendall(data)


class _Agent:
    """A host that has joined, without workers."""

    def __init__(self, coordinator: LoneCoordinator, probe_address: str) -> None:
        endpoint = coordinator.endpoint
        joined = join(endpoint.public, coordinator.token, "bench", DEADLINE_S, None)
        self.name = joined.message.name
        self._probe_address = probe_address
        self.relay = _Relay(control_address(endpoint.public))
        self._number = 0
        self._link = CoordinatorLink[StatusMessage, DesiredStateMessage](
            self.relay.address, lambda channel: Service(channel).attend, joined.credentials.agent
        )

    def send(self) -> None:
        """Send a heartbeat."""
        self._number += 1
        status = Status(
            host=self.name, number=self._number, capacity=1, probe_address=self._probe_address
        )
        self._link.send(StatusMessage(status=status))
        self._link.receive()

    def close(self) -> None:
        self._link.close()
        self.relay.close()


class _Cluster:
    """A coordinator and its agents."""

    def __init__(self, folder: Path, interval_s: float, num_agents: int) -> None:
        self._owned = ExitStack()
        self.interval_s = interval_s
        heartbeat = {"interval_s": interval_s, "timeout_s": TIMEOUT_INTERVALS * interval_s}
        hosts = num_agents + 1  # the coordinator's own never joins, so nothing else happens
        keys = {"workers": hosts, "hosts": hosts, "heartbeat": heartbeat}
        self.coordinator = LoneCoordinator(folder, keys, num_agents)
        self._owned.callback(self.coordinator.close)
        self._silent = self._owned.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = f"127.0.0.1:{self._silent.getsockname()[1]}"
        self._fill_backlog()
        self.agents = [_Agent(self.coordinator, address) for _ in range(num_agents)]
        for agent in self.agents:
            self._owned.callback(agent.close)
        self._events = JsonTail(folder / EVENTS)
        self._beats = [
            (time.monotonic() + interval_s * place / num_agents, agent)
            for place, agent in enumerate(self.agents)
        ]

    def close(self) -> None:
        """End it."""
        self._owned.close()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Send heartbeats until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_done():
            now = time.monotonic()
            if now > deadline:
                raise HoldfastError(f"the benchmark waited {DEADLINE_S:.0f} s in vain")
            for place, (due, agent) in enumerate(self._beats):
                if due <= now:
                    agent.send()
                    self._beats[place] = due + self.interval_s, agent
            time.sleep(0.005)

    def run_for(self, seconds: float) -> None:
        """Send heartbeats for a while."""
        end = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end)

    def cost(self, seconds: float) -> dict[str, float]:
        """Columns of a row: what heartbeats cost for so many seconds."""
        cpu_s = self.coordinator.cpu_s()
        began = time.monotonic()
        before = sum(agent.relay.num_bytes for agent in self.agents)
        self.run_for(seconds)
        elapsed_s = time.monotonic() - began
        num_bytes = sum(agent.relay.num_bytes for agent in self.agents) - before
        return {
            "bytes_per_s": round(num_bytes / elapsed_s),
            "coordinator_cpu_s_per_hour": round(
                3600 * (self.coordinator.cpu_s() - cpu_s) / elapsed_s, 1
            ),
        }

    def detection_s(self, agent: _Agent) -> float:
        """Cut an agent off; returns the seconds until the coordinator knows that it is."""
        began = time.time()
        found = list[float]()

        def is_found() -> bool:
            found.extend(
                event["time_unix_s"]
                for event in self._events()
                if event["event"] == "host-probed" and event["host"] == agent.name
            )
            return bool(found)

        agent.relay.is_cut = True
        self.run_until(is_found)
        return found[0] - began

    def _fill_backlog(self) -> None:
        """Let the kernel answer no probe."""
        for _ in range(4):
            held = self._owned.enter_context(socket.socket())
            held.setblocking(False)
            held.connect_ex(self._silent.getsockname())


def measure(interval_s: float, num_agents: int, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    print(f"{num_agents} agents, every {interval_s} s", file=sys.stderr)
    chance = random.Random(num_agents)  # chance, not secrecy
    row: dict[str, Any] = {"agents": num_agents, "interval_s": interval_s}
    row["timeout_s"] = TIMEOUT_INTERVALS * interval_s
    found = list[float]()
    # A host that was cut off does not come back, so a small cluster is started several times.
    while len(found) < CUTS:
        with tempfile.TemporaryDirectory() as folder:
            cluster = _Cluster(Path(folder) / "run", interval_s, num_agents)
            with closing(cluster):
                cluster.run_for(max(2.0, 2 * interval_s))
                if not found:
                    row |= cluster.cost(seconds)
                for agent in cluster.agents[: CUTS - len(found)]:
                    cluster.run_for(chance.uniform(0, interval_s))
                    found.append(cluster.detection_s(agent))
    return {**row, "detection_s": spread(found, 2)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--intervals", default="0.5,1,2,5", help="Heartbeat intervals, seconds.")
    parser.add_argument("--agents", default="1,4,16", help="Numbers of agents.")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="Seconds that each row measures."
    )


def run(options: argparse.Namespace) -> Measured:
    """Measure every interval with every number of agents."""
    rows = [
        measure(float(interval), int(agents), options.seconds)
        for agents in options.agents.split(",")
        for interval in options.intervals.split(",")
    ]
    return Measured(rows=rows)
