"""Random faults: one by one, or for a rack at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast_bench.simulation.disk import SimulatedDisk
from holdfast_bench.simulation.simulation import Simulation

KINDS: Final = (
    "worker", "hang", "slow", "agent", "leave", "disk", "full", "damage", "network", "noise",
    "island", "one-way", "starved", "coordinator", "crash",
)  # fmt: skip
"""The kinds of faults; the last two are for the coordinator, the others for an agent."""


def inject_at_random(
    simulation: Simulation, faults: int, until: float, kinds: Sequence[str] = KINDS
) -> None:
    """Inject faults at random times until a time."""

    def inject_one() -> None:
        kind = simulation.chance.choice(kinds)
        agents = simulation.living_agents()
        if agents:
            inject(simulation, kind, simulation.chance.choice(agents))

    for _ in range(faults):
        simulation.at(simulation.chance.uniform(0, until), inject_one)


def burst(simulation: Simulation, size: int) -> int:
    """Inject one kind of fault into neighbours at once, and maybe one into the coordinator.

    Returns:
        How many faults these were.
    """
    chance = simulation.chance
    agents = simulation.living_agents()
    kind = chance.choice(KINDS[:-2])
    first = chance.randrange(len(agents))
    hit = agents[first : first + size]
    if kind == "island":  # the whole rack is
        simulation.cut_off(hit, chance.uniform(0.1, 20))
    else:
        for name in hit:
            inject(simulation, kind, name)
    if chance.random() < 0.8:
        return len(hit)
    inject(simulation, chance.choice(KINDS[-2:]), agents[first])
    return len(hit) + 1


def inject(simulation: Simulation, kind: str, name: str) -> None:
    """Inject a fault of one of `KINDS`, into an agent if it is for agents."""
    chance = simulation.chance
    match kind:
        case "worker" | "hang" | "slow":
            if workers := simulation.workers_of(name):
                worker = chance.choice(workers)
                if kind == "worker":
                    simulation.kill_worker(worker)
                elif kind == "slow":
                    simulation.slow_down(worker, chance.uniform(0, 30))
                else:
                    simulation.hang_worker(worker)
        case "agent" | "disk":
            simulation.kill_agent(name, chance.uniform(0.1, 5), loses_disk=kind == "disk")
        case "full" | "damage":
            _inject_into_disk(simulation, kind, simulation.disk_of(name))
        case "network":
            to = chance.random() < 0.7
            back = not to or chance.random() < 0.7
            simulation.cut(name, to=to, back=back, heal_s=chance.uniform(0.1, 10))
        case "noise":
            simulation.disturb(name, loss=0.2, late=0.2, heal_s=chance.uniform(0.1, 10))
        case "coordinator":
            simulation.kill_coordinator(chance.uniform(0.1, 3))
        case "crash":
            simulation.crash_coordinator(chance.randrange(6), chance.uniform(0.1, 3))
        case _:
            _inject_into_host(simulation, kind, name)


def _inject_into_disk(simulation: Simulation, kind: str, disk: SimulatedDisk) -> None:
    if kind == "damage":
        disk.damage_newest()
    else:
        disk.is_full = True
        simulation.at(simulation.now + simulation.chance.uniform(0.1, 20), disk.make_space)


def _inject_into_host(simulation: Simulation, kind: str, name: str) -> None:
    chance = simulation.chance
    match kind:
        case "island":
            simulation.cut_off([name], chance.uniform(0.1, 20))
        case "leave":
            simulation.leave(name)
        case "one-way":
            others = [other for other in simulation.living_agents() if other != name]
            if others:
                simulation.cut_between(name, chance.choice(others), chance.uniform(0.1, 20))
        case "starved":
            simulation.starve(name, chance.uniform(0.1, 20))
        case _:
            raise ValueError(f"{kind!r} is none of {KINDS}")
