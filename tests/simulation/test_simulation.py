"""The machines of coordinator and agents, against everything that can happen to a cluster.

What must never happen is asserted inside the simulation: two lineages, a step that is skipped,
committed twice or taken back, workers of one generation that differ.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.actions import GenerationOpened, RunEnded
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Stage
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.random_faults import inject_at_random
from holdfast_bench.simulation.simulation import Simulation


def replacing(world_size: int, **more: Any) -> RecoveryPolicy:
    return RecoveryPolicy(
        world_size=world_size, min_workers=world_size, **{"max_failures": 10**6} | more
    )


def assert_finished(simulation: Simulation, steps: int) -> None:
    assert simulation.over
    assert simulation.run is not None
    assert not simulation.run.reason
    assert simulation.steps == steps


def generations(simulation: Simulation) -> int:
    assert simulation.run is not None
    return simulation.run.generation


def test_an_undisturbed_run_needs_one_generation() -> None:
    simulation = Simulation(Cluster(hosts=2, capacity=2, num_steps=20), replacing(4), seed=0)
    simulation.run_until(100)
    assert_finished(simulation, 20)
    assert generations(simulation) == 1


def test_a_killed_worker_is_replaced_and_no_step_is_lost() -> None:
    simulation = Simulation(Cluster(hosts=1, capacity=2, num_steps=20), replacing(2), seed=0)
    simulation.run_until(5)
    before = simulation.steps
    simulation.kill_worker(simulation.living_workers()[0])
    simulation.run_until(6.5)
    assert simulation.steps >= before
    simulation.run_until(100)
    assert_finished(simulation, 20)
    assert generations(simulation) == 2


def test_a_coordinator_that_comes_back_disturbs_nobody() -> None:
    simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=20), replacing(3), seed=0)
    simulation.run_until(5)
    simulation.kill_coordinator(back_s=2)
    simulation.run_until(100)
    assert_finished(simulation, 20)
    assert generations(simulation) == 1


def test_a_coordinator_that_comes_back_is_told_at_once() -> None:
    policy = replacing(3, heartbeat_s=60, heartbeat_timeout_s=200)
    simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=20), policy, seed=0)
    simulation.run_until(5)
    simulation.kill_coordinator(back_s=2)
    simulation.run_until(7.2)
    assert simulation.run is not None
    assert simulation.run.stage == Stage.RUN


def test_a_network_that_is_mended_is_used_at_once() -> None:
    policy = replacing(2, heartbeat_s=60, heartbeat_timeout_s=200)
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=20), policy, seed=0)
    simulation.run_until(5)
    simulation.cut(simulation.living_agents()[0], to=True, back=True, heal_s=2)
    simulation.kill_worker(simulation.living_workers()[0])
    simulation.run_until(6.9)
    assert generations(simulation) == 1
    simulation.run_until(7.2)
    assert generations(simulation) == 2


def standbys(simulation: Simulation) -> set[int]:
    """The ranks that are no members."""
    assert simulation.run is not None
    return set(range(simulation.policy.world_size)) - set(simulation.run.members)


def with_one_on_standby(hosts: int, capacity: int) -> Simulation:
    """A run in which each worker is needed, and rank 1 is slow from second 5 to second 45."""
    world, steps = hosts * capacity, 100
    cluster = Cluster(hosts=hosts, capacity=capacity, num_steps=steps)
    simulation = Simulation(cluster, replacing(world, max_failures=0), seed=0)
    simulation.run_until(5)
    (slow,) = (worker for worker in simulation.living_workers() if worker.rank == 1)
    simulation.slow_down(slow, heal_s=40)
    simulation.run_until(8)
    assert standbys(simulation) == {1}
    return simulation


@pytest.mark.parametrize(("hosts", "capacity"), [(1, 4), (2, 2), (3, 1)])
def test_a_slow_worker_waits_on_standby_and_returns(hosts: int, capacity: int) -> None:
    simulation = with_one_on_standby(hosts, capacity)
    before, processes = simulation.steps, {w.process for w in simulation.living_workers()}
    simulation.run_until(30)
    assert simulation.steps > before + 10
    assert standbys(simulation) == {1}
    simulation.run_until(60)
    assert standbys(simulation) == set()
    assert {worker.process for worker in simulation.living_workers()} == processes
    simulation.run_until(400)
    assert_finished(simulation, 100)
    assert generations(simulation) == 3


def test_a_run_ends_with_a_worker_on_standby() -> None:
    simulation = with_one_on_standby(1, 4)
    simulation.at(12, simulation.stop)
    simulation.run_until(30)
    assert simulation.over
    assert simulation.run is not None
    assert not simulation.run.reason
    assert generations(simulation) == 2


@pytest.mark.parametrize(("hosts", "capacity"), [(1, 4), (3, 1)])
def test_a_coordinator_that_comes_back_knows_who_is_on_standby(hosts: int, capacity: int) -> None:
    simulation = with_one_on_standby(hosts, capacity)
    simulation.kill_coordinator(back_s=2)
    simulation.run_until(15)
    assert (standbys(simulation), generations(simulation)) == ({1}, 2)
    simulation.run_until(400)
    assert_finished(simulation, 100)
    assert generations(simulation) == 3


def test_a_worker_on_standby_that_dies_is_a_failure_like_any_other() -> None:
    simulation = with_one_on_standby(1, 4)
    (standby,) = (worker for worker in simulation.living_workers() if worker.rank == 1)
    simulation.kill_worker(standby)
    simulation.run_until(400)
    assert simulation.run is not None
    assert simulation.run.reason == "rank 1 SIGKILL"  # `with_one_on_standby` tolerates none


def test_a_worker_on_standby_returns_if_too_few_others_are_left() -> None:
    policy = RecoveryPolicy(world_size=2, min_workers=1, regrow_delay_s=100.0)
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=60), policy, seed=0)
    simulation.run_until(5)
    slow, other = simulation.living_agents()
    simulation.slow_down(simulation.workers_of(slow)[0], heal_s=1000)
    simulation.run_until(8)
    assert len(standbys(simulation)) == 1
    simulation.kill_agent(other, back_s=50)
    simulation.run_until(20)
    assert simulation.run is not None
    assert list(simulation.run.members.values()) == [slow]
    simulation.run_until(400)
    assert_finished(simulation, 60)


def test_the_run_ends_while_the_coordinator_is_away_and_it_finds_that_out() -> None:
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=5), replacing(2), seed=0)
    simulation.run_until(2)
    simulation.kill_coordinator(back_s=60)
    simulation.run_until(200)
    assert_finished(simulation, 5)


def test_a_worker_that_hangs_is_replaced() -> None:
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=20), replacing(2), seed=0)
    simulation.run_until(5)
    simulation.hang_worker(simulation.living_workers()[0])
    simulation.run_until(100)
    assert_finished(simulation, 20)
    assert generations(simulation) == 2


def test_a_stop_ends_the_run_early_and_well() -> None:
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=1000), replacing(2), seed=0)
    simulation.at(5, simulation.stop)
    simulation.run_until(100)
    assert simulation.over
    assert simulation.run is not None
    assert not simulation.run.reason
    assert 2 < simulation.steps < 10


@pytest.mark.parametrize("after", range(8))
def test_a_coordinator_that_dies_in_the_middle_of_its_work_comes_back_to_it(after: int) -> None:
    simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=20), replacing(3), seed=after)
    simulation.run_until(5)
    simulation.crash_coordinator(after, back_s=1)
    simulation.kill_worker(simulation.living_workers()[0])
    simulation.run_until(100)
    assert_finished(simulation, 20)


def test_a_fact_whose_recording_was_cut_short_is_there_afterwards_or_is_not() -> None:
    found = set()
    for seed in range(10):
        simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=10), replacing(3), seed)
        simulation.run_until(5.3)  # between two heartbeats
        simulation.crash_coordinator(after=0, back_s=1)
        simulation.kill_worker(simulation.living_workers()[0])
        simulation.run_until(6.2)
        assert simulation.run is None
        simulation.run_until(6.31)
        cut_short = next(line for line in simulation.log if "is cut short" in line)
        assert generations(simulation) == (2 if cut_short.endswith("kept") else 1)
        found.add(cut_short.rpartition(" ")[2])
        simulation.run_until(100)
        assert_finished(simulation, 10)
    assert found == {"kept", "lost"}


def test_a_world_shrinks_and_grows_again() -> None:
    policy = RecoveryPolicy(world_size=4, min_workers=2, max_failures=100)
    simulation = Simulation(Cluster(hosts=2, capacity=2, num_steps=60), policy, seed=0)
    simulation.run_until(5)
    sizes = []
    simulation.kill_agent(simulation.living_agents()[0], back_s=20)
    for time in (8, 40):
        simulation.run_until(time)
        assert simulation.run is not None
        assert simulation.run.stage == Stage.RUN
        sizes.append(len(simulation.run.members))
    assert sizes == [2, 4]
    simulation.run_until(200)
    assert_finished(simulation, 60)


def test_a_world_of_which_nobody_is_left_does_not_rest() -> None:
    policy = RecoveryPolicy(world_size=2, min_workers=1, regrow_delay_s=30.0)
    simulation = Simulation(Cluster(hosts=1, capacity=2, num_steps=60), policy, seed=0)
    simulation.run_until(5)
    simulation.kill_agent(simulation.living_agents()[0], back_s=0.5)
    simulation.run_until(8)
    assert simulation.run is not None
    assert simulation.run.stage == Stage.RUN
    simulation.run_until(200)
    assert_finished(simulation, 60)


def test_a_host_that_is_cut_off_is_fenced_and_comes_back_as_another() -> None:
    policy = RecoveryPolicy(world_size=2, min_workers=1, max_failures=100)
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=60), policy, seed=0)
    simulation.run_until(5)
    lost = simulation.living_agents()[0]
    simulation.cut(lost, to=True, back=True, heal_s=10)
    simulation.run_until(30)
    assert lost not in simulation.living_agents()
    assert len(simulation.living_workers()) == 2
    simulation.run_until(200)
    assert_finished(simulation, 60)


def test_a_checkpoint_survives_a_host_and_its_disk() -> None:
    cluster = Cluster(hosts=2, capacity=1, num_steps=60, checkpoint_every=10)
    simulation = Simulation(cluster, replacing(2), seed=0)
    simulation.run_until(32)
    before = simulation.checkpoint
    assert before >= 20
    first, second = simulation.living_agents()
    simulation.kill_agent(first, back_s=1, loses_disk=True)
    simulation.kill_agent(second, back_s=2)
    simulation.run_until(40)
    resumed = [line for line in simulation.log if "resumes in generation" in line][2:]
    assert {int(line.rpartition(" ")[2]) for line in resumed} == {before}
    simulation.run_until(200)
    assert_finished(simulation, 60)


def test_without_any_disk_a_run_begins_again() -> None:
    cluster = Cluster(hosts=2, capacity=1, num_steps=30, checkpoint_every=10)
    simulation = Simulation(cluster, replacing(2), seed=0)
    simulation.run_until(15)
    assert simulation.checkpoint == 10
    for name in simulation.living_agents():
        simulation.kill_agent(name, back_s=1, loses_disk=True)
    simulation.run_until(200)
    assert_finished(simulation, 30)
    assert any(line.endswith("from step 0") for line in simulation.log[-8:])


def test_a_run_that_fails_again_and_again_ends_with_the_reason() -> None:
    policy = replacing(2, max_failures=3)
    simulation = Simulation(Cluster(hosts=1, capacity=2, num_steps=1000), policy, seed=0)
    for time in range(5, 30, 5):
        simulation.at(time, lambda: simulation.kill_worker(simulation.living_workers()[0]))
    simulation.run_until(100)
    assert simulation.over
    assert simulation.run is not None
    assert "more than 3 failures" in simulation.run.reason
    assert "SIGKILL" in simulation.run.reason


def test_a_run_that_cannot_get_its_workers_gives_up() -> None:
    policy = RecoveryPolicy(world_size=4, min_workers=4, join_timeout_s=30.0)
    simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=10), policy, seed=0)
    simulation.run_until(100)
    assert simulation.over
    assert simulation.run is not None
    assert "of 4 required workers" in simulation.run.reason


def test_where_all_begin_anew_none_outlives_its_generation() -> None:
    cluster = Cluster(hosts=2, capacity=2, num_steps=60, checkpoint_every=10)
    simulation = Simulation(cluster, replacing(4, restart_all=True), seed=0)
    simulation.run_until(35)
    before = {worker.process: worker for worker in simulation.living_workers()}
    simulation.kill_worker(simulation.living_workers()[0])
    simulation.run_until(36)
    assert not [worker for worker in simulation.living_workers() if worker in before.values()]
    released = [line for line in simulation.log if "resumes in generation 2" in line]
    assert len(released) == 2
    assert all(int(line.rpartition(" ")[2]) % 10 == 0 for line in released)
    simulation.run_until(200)
    assert_finished(simulation, 60)


@pytest.mark.parametrize("seed", range(20))
def test_a_storm_of_faults_costs_no_more_where_all_begin_anew(seed: int) -> None:
    cluster = Cluster(hosts=3, capacity=2, num_steps=400, step_s=0.1, checkpoint_every=5)
    cluster = replace(cluster, loss=(0.0, 0.05)[seed % 2], late=(0.0, 0.1)[seed // 2 % 2])
    simulation = Simulation(cluster, replacing(6, restart_all=True), seed)
    inject_at_random(simulation, faults=60, until=200)
    simulation.run_until(5000)
    assert_finished(simulation, 400)


@pytest.mark.parametrize("seed", range(60))
def test_a_storm_of_faults_costs_time_and_nothing_else(seed: int) -> None:
    cluster = Cluster(
        hosts=3,
        capacity=2,
        num_steps=400,
        step_s=(1.0, 0.1, 0.5)[seed % 3],
        loss=(0.0, 0.05, 0.1)[seed // 3 % 3],
        late=(0.0, 0.1, 0.3)[seed // 9 % 3],
    )
    policy = RecoveryPolicy(world_size=6, min_workers=(6, 2)[seed % 2], max_failures=10**6)
    simulation = Simulation(cluster, policy, seed)
    inject_at_random(simulation, faults=60, until=200)
    simulation.run_until(5000)
    assert_finished(simulation, 400)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_finishes_though_workers_run_out_of_memory_among_other_faults(seed: int) -> None:
    cluster = Cluster(hosts=4, capacity=2, num_steps=300, loss=(0.0, 0.1)[seed % 2])
    least = (8, 1)[seed // 2 % 2]
    policy = RecoveryPolicy(
        world_size=8, min_workers=least, max_failures=10**6, num_shards=16, regrow_delay_s=1.0
    )
    simulation = Simulation(cluster, policy, seed)
    chance = random.Random(seed)

    def exhaust() -> None:
        workers = [each for each in simulation.living_workers() if each.rank < 4]
        for worker in workers[: chance.randrange(3)]:
            simulation.exhaust_worker(worker, chance.randrange(3))

    inject_at_random(simulation, faults=20 * (seed // 4), until=100)
    for time in range(5, 100, 8):
        simulation.at(time, exhaust)
    simulation.run_until(5000)
    assert_finished(simulation, 300)


def elastic(**more: Any) -> RecoveryPolicy:
    """Three hosts with one worker each, and capacity for two."""
    return RecoveryPolicy(
        world_size=6,
        min_workers=1,
        workers=3,
        host_share=1,
        start_workers=3,
        **{"max_failures": 9} | more,
    )


def test_a_run_is_scaled_up_and_down_and_no_step_is_lost() -> None:
    simulation = Simulation(Cluster(hosts=3, capacity=2, num_steps=100), elastic(), seed=0)
    sizes = (3, 6, 2, 5)
    for number, size in enumerate(sizes, start=1):
        if number > 1:
            simulation.scale(size)
        before = simulation.steps
        simulation.run_until(8 * number)
        assert simulation.run is not None
        assert len(simulation.run.members) == size
        assert simulation.steps > before
        assert generations(simulation) == number
    simulation.run_until(400)
    assert_finished(simulation, 100)


def test_a_host_that_leaves_costs_no_step_and_no_failure() -> None:
    policy = elastic(max_failures=0)
    simulation = Simulation(Cluster(hosts=3, capacity=2, num_steps=60), policy, seed=0)
    simulation.run_until(10.01)
    before = simulation.steps
    simulation.leave(simulation.living_agents()[0])
    simulation.run_until(10.9)
    assert simulation.run is not None
    assert len(simulation.run.members) == 2
    assert generations(simulation) == 2
    simulation.run_until(12.5)
    assert simulation.steps > before
    simulation.run_until(400)
    assert_finished(simulation, 60)


def test_the_size_of_a_run_outlives_its_coordinator() -> None:
    simulation = Simulation(Cluster(hosts=3, capacity=2, num_steps=100), elastic(), seed=0)
    simulation.run_until(5)
    simulation.scale(5)
    simulation.run_until(8)
    simulation.kill_coordinator(back_s=2)
    simulation.kill_worker(simulation.living_workers()[-1])
    simulation.run_until(20)
    assert simulation.run is not None
    assert len(simulation.run.members) == 5
    simulation.run_until(400)
    assert_finished(simulation, 100)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_is_scaled_in_a_storm_of_faults(seed: int) -> None:
    cluster = Cluster(hosts=3, capacity=2, num_steps=300, loss=(0.0, 0.1)[seed % 2])
    policy = elastic(max_failures=10**6, restart_all=seed % 3 == 2)
    simulation = Simulation(cluster, policy, seed)
    inject_at_random(simulation, faults=30, until=150)
    for _ in range(20):
        size = simulation.chance.randint(1, 6)
        simulation.at(simulation.chance.uniform(0, 150), simulation.scale, size)
    simulation.run_until(5000)
    assert_finished(simulation, 300)


def test_one_seed_is_one_history() -> None:
    logs = []
    for _ in range(2):
        cluster = Cluster(hosts=3, capacity=2, num_steps=100, loss=0.05, late=0.1)
        simulation = Simulation(cluster, replacing(6), seed=7)
        inject_at_random(simulation, faults=20, until=80)
        simulation.run_until(1000)
        logs.append(simulation.log)
    assert logs[0] == logs[1]
    assert any(str(GenerationOpened.__name__) in line for line in logs[0])
    assert any(str(RunEnded.__name__) in line for line in logs[0])


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_checkpoints_are_asked_for_by_the_clock(loss: float) -> None:
    cluster = Cluster(
        hosts=3, capacity=1, num_steps=500, checkpoint_every=10**6, loss=loss, late=loss
    )
    simulation = Simulation(cluster, replacing(3, checkpoint_s=30), seed=0)
    simulation.run_until(5)
    while not simulation.over:
        assert simulation.steps - simulation.checkpoint < 50
        simulation.run_until(simulation.now + 5)
    assert_finished(simulation, 500)


def test_checkpoints_are_asked_for_by_the_clock_though_everything_fails_at_times() -> None:
    cluster = Cluster(hosts=4, capacity=2, num_steps=500, checkpoint_every=10**6, loss=0.05)
    simulation = Simulation(cluster, replacing(8, checkpoint_s=10), seed=1)
    inject_at_random(simulation, 100, until=300)
    simulation.run_until(5000)
    assert_finished(simulation, 500)
    assert simulation.checkpoint > 400


def test_hosts_that_cannot_reach_each_other_are_separated_once() -> None:
    policy = RecoveryPolicy(world_size=3, min_workers=1, max_failures=100)
    simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=100), policy, seed=0)
    simulation.run_until(5)
    one, other = simulation.living_agents()[:2]
    simulation.cut_between(one, other, heal_s=8)
    simulation.run_until(12)
    assert len({one, other} & set(simulation.living_agents())) == 1, "one of them is fenced"
    simulation.run_until(40)
    assert len(simulation.living_workers()) == 3
    simulation.run_until(400)
    assert_finished(simulation, 100)
    assert generations(simulation) == 3


def test_a_host_that_is_starved_is_waited_for() -> None:
    simulation = Simulation(Cluster(hosts=3, capacity=1, num_steps=60), replacing(3), seed=0)
    simulation.run_until(5)
    simulation.starve(simulation.living_agents()[1], heal_s=25)
    simulation.run_until(400)
    assert_finished(simulation, 60)
    assert generations(simulation) == 1


def test_what_is_left_of_a_partition_continues_where_the_coordinator_is() -> None:
    policy = RecoveryPolicy(world_size=5, min_workers=1, max_failures=100)
    simulation = Simulation(Cluster(hosts=5, capacity=1, num_steps=100), policy, seed=0)
    simulation.run_until(5)
    before, island = simulation.steps, simulation.living_agents()[2:]
    simulation.cut_off(island, heal_s=20)
    simulation.run_until(20)
    assert simulation.steps > before + 5
    assert simulation.run is not None
    assert not set(island) & set(simulation.run.members.values())
    simulation.run_until(400)
    assert_finished(simulation, 100)


def test_a_host_that_was_fenced_does_not_bring_back_an_old_state() -> None:
    """The coordinator does not remember whom its predecessor has fenced."""
    policy = RecoveryPolicy(world_size=2, min_workers=1, max_failures=100)
    simulation = Simulation(Cluster(hosts=2, capacity=1, num_steps=200), policy, seed=0)
    simulation.run_until(5)
    lost, other = simulation.living_agents()
    simulation.cut(lost, to=True, back=True, heal_s=20)
    simulation.run_until(24)
    simulation.kill_coordinator(back_s=3)
    simulation.kill_agent(other, back_s=10)
    simulation.run_until(1000)
    assert_finished(simulation, 200)
