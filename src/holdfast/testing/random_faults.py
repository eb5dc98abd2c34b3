"""Storms: faults at random, one by one or a rack at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.testing.simulation import Simulation

KINDS: Final = ("worker", "hang", "agent", "network", "noise", "coordinator", "crash")
"""What can go wrong; the last two befall the coordinator, the others an agent."""


def storm(simulation: Simulation, faults: int, until: float, kinds: Sequence[str] = KINDS) -> None:
    """Strike at random until a time."""

    def fall() -> None:
        kind, agents = simulation.chance.choice(kinds), simulation.living_agents()
        if agents:
            strike(simulation, kind, simulation.chance.choice(agents))

    for _ in range(faults):
        simulation.at(simulation.chance.uniform(0, until), fall)


def burst(simulation: Simulation, size: int) -> int:
    """Strike neighbours in the same instant and in the same way, and maybe the coordinator too.

    Returns:
        How many faults these were.
    """
    chance, agents = simulation.chance, simulation.living_agents()
    kind, first = chance.choice(KINDS[:-2]), chance.randrange(len(agents))
    struck = agents[first : first + size]
    for name in struck:
        strike(simulation, kind, name)
    if chance.random() < 0.8:
        return len(struck)
    strike(simulation, chance.choice(KINDS[-2:]), agents[first])
    return len(struck) + 1


def strike(simulation: Simulation, kind: str, name: str) -> None:
    """Have one of `KINDS` happen, where it is not the coordinator's, to an agent."""
    chance = simulation.chance
    match kind:
        case "worker" | "hang":
            if workers := simulation.workers_of(name):
                worker = chance.choice(workers)
                if kind == "worker":
                    simulation.kill_worker(worker)
                else:
                    simulation.hang_worker(worker)
        case "agent":
            simulation.kill_agent(name, chance.uniform(0.1, 5))
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
            raise ValueError(f"{kind!r} is none of {KINDS}")
