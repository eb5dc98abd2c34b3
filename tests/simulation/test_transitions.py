"""The coordinator's table of transitions is what its machine does in random histories."""

from functools import partial

import pytest

from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import TRANSITIONS
from holdfast.core.events import AgentLost
from holdfast.core.policy import RecoveryPolicy
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.random_faults import inject_at_random
from holdfast_bench.simulation.simulation import Simulation


def play(seed):
    policy = RecoveryPolicy(
        world_size=4,
        min_workers=2 if seed % 2 else 4,
        max_failures=seed % 4 if seed % 3 == 0 else 10**6,
        regrow_delay_s=1.0,
        checkpoint_s=7.0,
        join_timeout_s=6.0 if seed % 5 == 0 else 600.0,
    )
    simulation = Simulation(Cluster(hosts=3, capacity=2, num_steps=30), policy, seed)
    inject_at_random(simulation, 25, 40.0)

    def lose_an_agent():
        if agents := simulation.living_agents():
            name = simulation.chance.choice(agents)
            simulation.kill_agent(name, back_s=1.0)
            simulation.at(simulation.now, simulation._tell_run, AgentLost(name))

    for _ in range(4):
        simulation.at(simulation.chance.uniform(0, 40), lose_an_agent)
    if seed % 7 == 0:
        simulation.at(5, simulation.stop)
    for size in (2, 3, 4) if seed % 3 == 1 else ():
        simulation.at(simulation.chance.uniform(0, 40), simulation.scale, size)
    simulation.run_until(10_000)


def end_without_the_coordinator():
    policy = RecoveryPolicy(world_size=2, min_workers=2)
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=5), policy, seed=0)
    simulation.at(2, simulation.kill_coordinator, 60)
    simulation.run_until(200)


def end_at_once(after_s):
    policy = RecoveryPolicy(world_size=2, min_workers=2)
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=50), policy, seed=0)
    simulation.at(after_s, partial(simulation.stop, at_once=True))
    simulation.run_until(200)


def end_without_workers():
    policy = RecoveryPolicy(world_size=2, min_workers=2, join_timeout_s=6.0)
    Simulation(Cluster(hosts=1, capacity=1, num_steps=5), policy, seed=0).run_until(200)


@pytest.mark.slow
def test_every_transition_of_the_table_happens_and_no_other(monkeypatch):
    seen, handle = {stage: {} for stage in TRANSITIONS}, CoordinatorStateMachine.handle

    def watched(machine, event, now):
        before = machine.stage
        actions = handle(machine, event, now)
        if machine.stage != before:
            seen[before].setdefault(type(event), set()).add(machine.stage)
        return actions

    monkeypatch.setattr(CoordinatorStateMachine, "handle", watched)
    for seed in range(100):
        play(seed)
    end_without_the_coordinator()
    end_without_workers()
    for tenths in range(100):
        end_at_once(tenths / 10)
    assert seen == TRANSITIONS
