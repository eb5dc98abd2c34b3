"""Storms: faults at random, for as long as one likes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.testing.simulation import Simulation


def storm(simulation: Simulation, faults: int, until: float, kinds: Sequence[str]) -> None:
    """Strike at random until a time; `kinds` are the names of the faults to choose from."""

    def strike() -> None:
        chance, agents = simulation.chance, simulation.living_agents()
        workers = simulation.living_workers()
        kind = chance.choice(kinds)
        if kind == "worker" and workers:
            simulation.kill_worker(chance.choice(workers))
        elif kind == "hang" and workers:
            simulation.hang_worker(chance.choice(workers))
        elif kind == "agent" and agents:
            simulation.kill_agent(chance.choice(agents), chance.uniform(0.1, 5))
        elif kind == "coordinator":
            simulation.kill_coordinator(chance.uniform(0.1, 3))
        elif kind == "crash":
            simulation.crash_coordinator(chance.randrange(6), chance.uniform(0.1, 3))
        elif kind == "network" and agents:
            to = chance.random() < 0.7
            name, heal_s = chance.choice(agents), chance.uniform(0.1, 10)
            simulation.cut(name, to=to, back=not to or chance.random() < 0.7, heal_s=heal_s)

    for _ in range(faults):
        simulation.at(simulation.chance.uniform(0, until), strike)
