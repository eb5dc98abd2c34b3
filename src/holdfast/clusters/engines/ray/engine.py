"""RayEngine: agents as actors on bundles of placement groups, one on each node.

    reserve   a placement group with a bundle for each agent, on different nodes
    start     an actor on a free bundle; without one, on a bundle of one more group
    places    the results of the actors, and the nodes that Ray drains

If a node is lost, Ray finds another one for its bundle. Actors and groups end with the process that
has made them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from holdfast.clusters.engines.engine import Launch, ResourceRequest
from holdfast.clusters.engines.ray import cluster
from holdfast.clusters.engines.ray.agent_process import AgentActor
from holdfast.core.placement.replacing import AgentPlace, PlaceState
from holdfast.errors import EngineError

RESERVE_S: Final = 5.0
"""Time that Ray may take to reserve what is free."""
END_TIMEOUT_S: Final = 10.0
"""Time that Ray may take to answer when the run is over."""
WATCH_S: Final = 0.5
"""Interval at which the cluster is asked which nodes it drains."""


@dataclass(slots=True, kw_only=True)
class _Placed:
    """An agent.

    Attributes:
        bundle: Its placement group and the index of its bundle.
        actor: Its actor.
        node, result: Futures of the actor's methods; None once they are known.
        place: Name of its node.
    """

    bundle: tuple[PlacementGroup, int]
    actor: Any
    node: Any
    result: Any
    place: AgentPlace


class RayEngine:
    """Places the agents of one run in a Ray cluster.

    Args:
        address: The cluster's; by default `RAY_ADDRESS`, or one that runs on this host.

    Raises:
        EngineError: There is no cluster, or it refuses this process.
    """

    name = "ray"

    def __init__(self, address: str = "") -> None:
        self._has_connected = cluster.connect(address)
        self.peer = cluster.address()
        self._ask: ResourceRequest | None = None
        self._bundles: list[tuple[PlacementGroup, int]] = []
        self._placed: dict[str, _Placed] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._failure = ""
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watcher = threading.Thread(target=self._watch, name="ray-places", daemon=True)
        self._watcher.start()

    @property
    def num_hosts(self) -> int:
        """Implements `Engine.num_hosts`."""
        return cluster.hosts_with({})[1]

    def reserve(self, ask: ResourceRequest) -> str:
        """Implements `Engine.reserve`."""
        self._ask = ask
        bundle = _bundle(ask)
        group = placement_group([bundle] * ask.agents, strategy="STRICT_SPREAD")
        if group.wait(RESERVE_S):
            self._bundles = [(group, index) for index in range(ask.agents)]
            return ""
        remove_placement_group(group)
        fit, there = cluster.hosts_with(bundle)
        needs = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
        return f"{ask.agents} nodes with {needs} free each; {fit} of the cluster's {there} have it"

    def start(self, launch: Launch) -> None:
        """Implements `Engine.start`."""
        assert self._ask is not None, "nothing is reserved"
        bundle = self._free_bundle(self._ask)
        needs = _bundle(self._ask)
        actor = (
            ray.remote(AgentActor)
            .options(
                num_cpus=needs["CPU"],
                num_gpus=needs.get("GPU", 0),
                memory=needs.get("memory", 0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(*bundle),
            )
            .remote()
        )
        placed = _Placed(
            bundle=bundle,
            actor=actor,
            node=actor.node.remote(),
            result=actor.run.remote(launch.arguments, launch.token),
            place=AgentPlace(state=PlaceState.PENDING),
        )
        with self._lock:
            self._placed[launch.name] = placed

    def stop(self, name: str) -> None:
        """Implements `Engine.stop`."""
        with suppress(Exception):  # it has ended
            ray.kill(self._placed[name].actor)

    def places(self) -> Mapping[str, AgentPlace]:
        """Implements `Engine.places`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._news)
        if self._failure:
            raise EngineError(
                f"Ray does not answer: {self._failure}; resume the run once its cluster is back"
            )
        with self._lock:
            return {name: each.place for name, each in self._placed.items()}

    def fileno(self) -> int:
        """Implements `Engine.fileno`."""
        return self._news

    def close(self) -> None:
        """Implements `Engine.close`."""
        self._closing.set()
        self._watcher.join(END_TIMEOUT_S)
        for name in self._placed:
            self.stop(name)
        for group in {group.id: group for group, _ in self._bundles}.values():
            with suppress(Exception):  # the cluster is gone
                remove_placement_group(group)
        if self._has_connected:
            ray.shutdown()
        os.close(self._news)

    def _free_bundle(self, ask: ResourceRequest) -> tuple[PlacementGroup, int]:
        taken = {
            (group.id, index)
            for each in self._placed.values()
            if each.place.state is not PlaceState.ENDED
            for group, index in [each.bundle]
        }
        for group, index in self._bundles:
            if (group.id, index) not in taken:
                return group, index
        more = placement_group([_bundle(ask)])  # a group cannot grow
        self._bundles.append((more, 0))
        return more, 0

    def _watch(self) -> None:
        """Keep the places up to date, in a thread."""
        try:
            self._look_until_closed()
        except Exception as error:  # noqa: BLE001  # `places` raises it
            self._failure = str(error).partition("\n")[0] or type(error).__name__
            os.eventfd_write(self._news, 1)

    def _look_until_closed(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                known = list(self._placed.values())
            waiting = [ref for each in known for ref in (each.node, each.result) if ref is not None]
            if waiting:
                ray.wait(waiting, timeout=WATCH_S, fetch_local=False)
            else:
                self._closing.wait(WATCH_S)
            draining = cluster.draining()
            changes = [(each, place) for each in known if (place := _look(each, draining))]
            with self._lock:
                for each, place in changes:
                    each.place = place
            if changes:
                os.eventfd_write(self._news, 1)


def _look(placed: _Placed, draining: Mapping[str, float | None]) -> AgentPlace | None:
    """Place of an agent now, if that has changed."""
    before = now = placed.place
    if placed.result is None:
        return None
    if placed.node is not None and _is_ready(placed.node):
        with suppress(Exception):  # its result says why
            now = AgentPlace(state=PlaceState.RUNNING, host=ray.get(placed.node))
        placed.node = None
    if now.host in draining:
        now = replace(now, state=PlaceState.DRAINING, deadline_unix_s=draining[now.host])
    if _is_ready(placed.result):
        now = _ended(placed.result, now.host)
        placed.result = placed.node = None
    return now if now != before else None


def _ended(result: Any, host: str) -> AgentPlace:
    try:
        status, printed = ray.get(result)
    except Exception as error:  # noqa: BLE001  # of the actor, its node or the cluster
        cause = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return AgentPlace(state=PlaceState.ENDED, host=host, cause=cause)
    cause = f"the agent ended with status {status}: {printed}" if status else ""
    return AgentPlace(state=PlaceState.ENDED, host=host, cause=cause, succeeded=status == 0)


def _is_ready(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0, fetch_local=False)[0])


def _bundle(ask: ResourceRequest) -> dict[str, float]:
    """Needs of one agent by Ray's names; memory in bytes."""
    needs = ask.of_agent
    wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": needs.memory_bytes}
    return {name: float(amount) for name, amount in wanted.items() if amount or name == "CPU"}
