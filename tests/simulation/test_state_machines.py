"""The same machines under hypothesis: it looks for the shortest history that breaks them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core.policy import RecoveryPolicy
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.simulation import Simulation

WORLD = 4
STEPS = 60
PART = st.floats(0, 1, exclude_max=True)


class Histories(RuleBasedStateMachine):
    """Any faults in any order, any time apart; then peace, and the run must end well."""

    simulation: Simulation

    @initialize(
        seed=st.integers(0, 10**6),
        mode=st.sampled_from(["replace", "shrink", "anew"]),
        loss=st.sampled_from([0, 0.1]),
        checkpoint_s=st.sampled_from([0, 4]),
    )
    def begin(self, seed: int, mode: str, loss: float, checkpoint_s: float) -> None:
        cluster = Cluster(
            hosts=2, capacity=2, num_steps=STEPS, loss=loss, late=loss, checkpoint_every=5
        )
        policy = RecoveryPolicy(
            world_size=WORLD,
            min_workers=1 if mode == "shrink" else WORLD,
            restart_all=mode == "anew",
            max_failures=10**6,
            checkpoint_s=checkpoint_s,
        )
        self.simulation = Simulation(cluster, policy, seed)

    @rule(seconds=st.floats(0.001, 8))
    def wait(self, seconds: float) -> None:
        self.simulation.run_until(self.simulation.now + seconds)

    @rule(part=PART)
    def kill_worker(self, part: float) -> None:
        if workers := self.simulation.living_workers():
            self.simulation.kill_worker(workers[int(part * len(workers))])

    @rule(part=PART)
    def hang_worker(self, part: float) -> None:
        if workers := self.simulation.living_workers():
            self.simulation.hang_worker(workers[int(part * len(workers))])

    @rule(part=PART, heal_s=st.floats(0, 60))
    def slow_worker_down(self, part: float, heal_s: float) -> None:
        if workers := self.simulation.living_workers():
            self.simulation.slow_down(workers[int(part * len(workers))], heal_s)

    @rule(part=PART, back_s=st.floats(0.01, 5), loses_disk=st.booleans())
    def kill_agent(self, part: float, back_s: float, loses_disk: bool) -> None:
        if agents := self.simulation.living_agents():
            name = agents[int(part * len(agents))]
            self.simulation.kill_agent(name, back_s, loses_disk=loses_disk)

    @rule(part=PART, to=st.booleans(), back=st.booleans(), heal_s=st.floats(0.01, 10))
    def cut(self, part: float, to: bool, back: bool, heal_s: float) -> None:
        if agents := self.simulation.living_agents():
            name = agents[int(part * len(agents))]
            self.simulation.cut(name, to=to, back=back, heal_s=heal_s)

    @rule(back_s=st.floats(0.01, 5))
    def kill_coordinator(self, back_s: float) -> None:
        self.simulation.kill_coordinator(back_s)

    @rule(after=st.integers(0, 6), back_s=st.floats(0.01, 5))
    def crash_coordinator(self, after: int, back_s: float) -> None:
        self.simulation.crash_coordinator(after, back_s)

    @invariant()
    def holds(self) -> None:
        if self.simulation.run is not None:
            self.simulation.run.check_invariants()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.run_until(self.simulation.now + 2000)
            assert self.simulation.over
            assert self.simulation.run is not None
            assert not self.simulation.run.reason
            assert self.simulation.steps == STEPS


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
