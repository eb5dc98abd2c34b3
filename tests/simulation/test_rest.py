"""To leave out heartbeats that would change nothing changes nothing."""

from __future__ import annotations

import pytest

from holdfast.core.policy import RecoveryPolicy
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.random_faults import KINDS, inject_at_random
from holdfast_bench.simulation.simulation import Simulation

ON_AGENTS = [kind for kind in KINDS if kind not in ("full", "damage")]


def history(seed: int, *, rests: bool) -> list[str]:
    cluster = Cluster(hosts=6, capacity=2, num_steps=200, rests=rests)
    policy = RecoveryPolicy(
        world_size=8,
        min_workers=(8, 4)[seed % 2],
        max_failures=10**6,
        regrow_delay_s=(0.0, 0.0, 20.0)[seed % 3],
    )
    simulation = Simulation(cluster, policy, seed)
    inject_at_random(simulation, faults=12, until=300, kinds=ON_AGENTS)
    simulation.run_until(2000)
    assert simulation.over
    return simulation.log


@pytest.mark.parametrize("seed", range(30))
def test_the_history_is_the_same_with_and_without_rest(seed: int) -> None:
    assert history(seed, rests=True) == history(seed, rests=False)
