"""Scenarios: short histories of a simulated cluster, written down with how they must go.

A scenario is a file that says what the cluster is, what goes wrong when, and then the whole history
as it was when somebody last read it through. A change of the core that changes a history shows as a
difference in that file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from holdfast.core.policy import RecoveryPolicy
from holdfast.testing.cluster import Cluster
from holdfast.testing.simulation import Simulation


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScenarioFault(_Part):
    """What goes wrong.

    Attributes:
        at: When, seconds.
        what: Which fault.
        target: Which of the living workers or agents it strikes, in the order of their start.
        back_s: After how long what was killed is back, or what was cut is mended.
        after: How many more actions a coordinator performs before it crashes.
    """

    at: float
    what: Literal[
        "kill worker", "hang worker", "kill agent", "cut network to agent",
        "cut network from agent", "kill coordinator", "crash coordinator", "stop",
    ]  # fmt: skip
    target: int = 0
    back_s: float = 1.0
    after: int = 0


class Scenario(_Part):
    """A file's content; see `Cluster` and `Policy`.

    Attributes:
        about: What it shows.
        ends: The reason that the run must end with; empty if it must end well.
        history: What happens, a line each.
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
        ValidationError: It is none.
    """
    return Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def play(scenario: Scenario) -> Simulation:
    """Let it happen, to the end of the run."""
    cluster = Cluster(hosts=scenario.hosts, capacity=scenario.capacity, num_steps=scenario.steps)
    policy = RecoveryPolicy(
        world_size=scenario.world_size,
        min_workers=scenario.min_workers,
        max_failures=scenario.max_failures,
    )
    simulation = Simulation(cluster, policy, scenario.seed)
    for fault in scenario.faults:
        simulation.at(fault.at, _strike, simulation, fault)
    simulation.run_until(10_000)
    return simulation


def _strike(simulation: Simulation, fault: ScenarioFault) -> None:
    agent = simulation.living_agents()[fault.target % len(simulation.living_agents())]
    worker = simulation.living_workers()[fault.target % len(simulation.living_workers())]
    match fault.what:
        case "kill worker":
            simulation.kill_worker(worker)
        case "hang worker":
            simulation.hang_worker(worker)
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
