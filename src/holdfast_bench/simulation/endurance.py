"""Endurance: a large cluster for a long time, with faults in a rack again and again."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Final

from holdfast.core.policy import RecoveryPolicy
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.random_faults import burst
from holdfast_bench.simulation.simulation import Simulation

RACK: Final = 12
"""Hosts with a fault at a time."""
NEEDED_FRACTION: Final = 0.9
"""Fraction of the hosts that the run needs; far more are always up."""
UNBOUNDED: Final = 10**9
WARMUP_S: Final = 15.0
CHECKPOINT_EVERY: Final = 500
"""Steps. A checkpoint takes a message to each host and back, and a step takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnduranceResult:
    """Counts of what happened to a cluster."""

    faults: int
    generations: int
    steps: int


def endure(*, hosts: int, seconds: float, bursts: int, seed: int) -> EnduranceResult:
    """Inject faults into a cluster again and again; after each time it must make progress.

    `simulation.data_plane` asserts that no step is lost, committed twice or taken back, that there
    is one lineage, and that no fenced worker trains. The coordinator's own invariants look at every
    host, so here they are checked only once per as many events as there are hosts.

    Args:
        hosts: How many, with a worker each.
        seconds: For how long, of virtual time.
        bursts: How often faults are injected. Half a minute is enough to recover from them.
        seed: Fixes everything.
    """
    cluster = Cluster(
        hosts=hosts,
        capacity=1,
        num_steps=UNBOUNDED,
        checkpoint_every=CHECKPOINT_EVERY,
        check_every=hosts,
    )
    policy = RecoveryPolicy(
        world_size=hosts, min_workers=int(NEEDED_FRACTION * hosts), max_failures=UNBOUNDED
    )
    gc.disable()  # collecting over every agent again and again takes a third of the time
    try:
        simulation = Simulation(cluster, policy, seed)
        simulation.run_until(WARMUP_S)
        faults = 0
        for number in range(bursts):
            before = simulation.steps
            faults += burst(simulation, RACK)
            simulation.run_until(WARMUP_S + (seconds - WARMUP_S) * (number + 1) / bursts)
            assert simulation.steps > before, f"no progress at {simulation.now:.0f} s"
        while not simulation.over and simulation.now < seconds + 200:
            simulation.stop()  # maybe twice: a coordinator that crashes forgets the request
            simulation.run_until(simulation.now + 50)
    finally:
        gc.enable()
    assert simulation.run is not None
    assert simulation.over
    assert not simulation.run.reason, simulation.run.reason
    generations = simulation.run.generation
    return EnduranceResult(faults=faults, generations=generations, steps=simulation.steps)
