"""Scenarios: short histories of a simulated cluster, in files.

A scenario is a file with the cluster, its faults, and the whole history as it was when it was last
reviewed. A change of the core that changes a history shows as a difference in that file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from holdfast.core.policy import RecoveryPolicy
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.simulation import Simulation


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScenarioFault(_Part):
    """A fault to inject.

    Attributes:
        at: When, seconds.
        what: The kind of fault.
        target: Which of the living workers or agents it is for, in the order of their start.
        back_s: After how long a killed process is back, a cut network works again, or a slow worker
            is fast.
        after: How many more actions a coordinator performs before it crashes.
    """

    at: float
    what: Literal[
        "kill worker", "hang worker", "slow worker", "kill agent", "cut network to agent",
        "cut network from agent", "kill coordinator", "crash coordinator", "stop",
    ]  # fmt: skip
    target: int = 0
    back_s: float = 1.0
    after: int = 0


class Scenario(_Part):
    """The content of a file; see `Cluster` and `RecoveryPolicy`.

    Attributes:
        about: What it shows.
        ends: The reason with which the run must fail; empty if it must succeed.
        history: What happens, one line each.
    """

    about: str
    hosts: int
    capacity: int
    steps: int
    world_size: int
    min_workers: int
    max_failures: int = 10
    seed: int = 0
    faults: tuple[ScenarioFault, ...]
    ends: str = ""
    history: tuple[str, ...] = ()


def load(path: Path) -> Scenario:
    """The scenario in a file.

    Raises:
        ValidationError: It is not a scenario.
    """
    return Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def play(scenario: Scenario) -> Simulation:
    """Simulate it to the end of the run."""
    cluster = Cluster(hosts=scenario.hosts, capacity=scenario.capacity, num_steps=scenario.steps)
    policy = RecoveryPolicy(
        world_size=scenario.world_size,
        min_workers=scenario.min_workers,
        max_failures=scenario.max_failures,
    )
    simulation = Simulation(cluster, policy, scenario.seed)
    for fault in scenario.faults:
        simulation.at(fault.at, _inject, simulation, fault)
    simulation.run_until(10_000)
    return simulation


def _inject(simulation: Simulation, fault: ScenarioFault) -> None:
    agent = simulation.living_agents()[fault.target % len(simulation.living_agents())]
    worker = simulation.living_workers()[fault.target % len(simulation.living_workers())]
    match fault.what:
        case "kill worker":
            simulation.kill_worker(worker)
        case "hang worker":
            simulation.hang_worker(worker)
        case "slow worker":
            simulation.slow_down(worker, fault.back_s)
        case "kill agent":
            simulation.kill_agent(agent, fault.back_s)
        case "cut network to agent":
            simulation.cut(agent, to=True, back=False, heal_s=fault.back_s)
        case "cut network from agent":
            simulation.cut(agent, to=False, back=True, heal_s=fault.back_s)
        case "kill coordinator":
            simulation.kill_coordinator(fault.back_s)
        case "crash coordinator":
            simulation.crash_coordinator(fault.after, fault.back_s)
        case "stop":
            simulation.stop()
