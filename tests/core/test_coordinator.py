"""The coordinator's machine: who is in, in which stage, and what it sends."""

import dataclasses

from holdfast.core.actions import (
    AppendToJournal,
    GenerationOpened,
    RefuseHost,
    RunEnded,
    SendDesiredState,
)
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import AgentLost, ProgressRequested, StatusReceived
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Cap, Failure, Stage, Status

POLICY = RecoveryPolicy(world_size=3, min_workers=3)
WRONG = Failure(cause="has another weight", repeatable=True, state_untrusted=True)
KILLED = Failure(cause="was killed")
HOSTS = {0: "a", 1: "b", 2: "c"}


class Cluster:
    """Three hosts with a worker each, in what they tell a coordinator."""

    def __init__(self, run):
        self.run = run
        self.statuses = {h: Status(host=h, number=0, capacity=1, stage=Stage.IDLE) for h in "abc"}

    def tell(self, host, **fields):
        old = self.statuses[host]
        new = dataclasses.replace(old, number=old.number + 1, **fields)
        self.statuses[host] = new
        return self.run.handle(StatusReceived(new), now=float(new.number))

    def tell_all(self, **fields):
        return [action for host in "abc" for action in self.tell(host, **fields)]


def opened(actions):
    return [each.entry for each in actions if isinstance(each, AppendToJournal)]


def running(run):
    """A cluster whose workers train in generation 5, after a restart of the coordinator."""
    cluster = Cluster(run)
    cluster.tell_all(generation=5, stage=Stage.RUN)
    assert run.stage == Stage.RUN
    return cluster


def machine(workers=2, **policy):
    given = RecoveryPolicy(world_size=workers, min_workers=workers, **policy)
    return CoordinatorStateMachine(given, [], 0.0)


def tell(run, host, number, capacity=1, **fields):
    status = Status(host=host, number=number, capacity=capacity, **fields)
    actions = run.handle(StatusReceived(status), float(number))
    run.check_invariants()
    return actions


def test_waiting_for_names_missing_workers_then_hosts_and_then_nothing():
    run = machine()
    assert run.waiting_for() == "2 more workers (0 of 2 joined)"
    tell(run, "a", 1)
    assert run.waiting_for() == "2 more workers (0 of 2 joined)"
    tell(run, "b", 1)
    assert run.waiting_for() == "rank 0 on a and rank 1 on b to be ready"
    tell(run, "a", 2, generation=1, stage=Stage.HALT)
    assert run.waiting_for() == "rank 1 on b to be ready"
    tell(run, "b", 2, generation=1, stage=Stage.HALT)
    assert run.waiting_for() == "rank 0 on a and rank 1 on b to resume"
    tell(run, "a", 3, generation=1, stage=Stage.RUN)
    tell(run, "b", 3, generation=1, stage=Stage.RUN)
    assert run.waiting_for() == ""
    tell(run, "b", 4, generation=1, stage=Stage.RUN, failed={1: Failure(cause="was killed")})
    assert run.generation == 2
    assert run.waiting_for() == "rank 0 on a and rank 1 on b to be ready"


def test_waiting_for_counts_the_hosts_that_it_does_not_name():
    run = machine(6)
    for host in "abcdef":
        tell(run, host, 1)
    assert run.waiting_for() == (
        "rank 0 on a and rank 1 on b and rank 2 on c and 3 more hosts to be ready"
    )


def test_a_wrong_replica_restarts_all_though_the_coordinator_was_away_meanwhile():
    cluster = Cluster(CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS)], 0.0))
    cluster.tell("a", generation=5, stage=Stage.RUN)
    cluster.tell("b", generation=5, stage=Stage.RUN)
    (fact,) = opened(cluster.tell("c", generation=5, stage=Stage.RUN, failed={2: WRONG}))
    assert fact == GenerationOpened(6, HOSTS, restart_all=True)


def test_a_wrong_replica_restarts_all_though_another_failure_was_told_before():
    cluster = running(CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS)], 0.0))
    (first,) = opened(cluster.tell("a", failed={0: KILLED}))
    assert first == GenerationOpened(6, HOSTS, restart_all=False)
    (second,) = opened(cluster.tell("c", failed={2: WRONG}))
    assert second == GenerationOpened(7, HOSTS, restart_all=True)
    assert opened(cluster.tell("c", failed={2: WRONG})) == []  # the same report again


def test_all_are_restarted_once_and_not_again_after_a_restart_of_the_coordinator():
    cluster = running(
        CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS, restart_all=True)], 0.0)
    )
    (fact,) = opened(cluster.tell("a", failed={0: KILLED}))
    assert fact == GenerationOpened(6, HOSTS, restart_all=False)
    cluster = Cluster(
        CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS, restart_all=True)], 0.0)
    )
    cluster.tell("a", generation=5, stage=Stage.RUN)
    cluster.tell("b", generation=5, stage=Stage.RUN)
    (fact,) = opened(cluster.tell("c", generation=5, stage=Stage.RUN, failed={2: KILLED}))
    assert fact == GenerationOpened(6, HOSTS, restart_all=False)
    cluster = Cluster(
        CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS, restart_all=True)], 0.0)
    )
    (fact,) = opened(cluster.tell_all(generation=4, stage=Stage.HALT))
    assert fact == GenerationOpened(6, HOSTS, restart_all=True)  # it was not carried out


def test_a_fatal_failure_ends_the_run_at_once():
    cluster = running(CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS)], 0.0))
    failed = {1: dataclasses.replace(KILLED, fatal=True)}
    (fact,) = opened(cluster.tell("b", failed=failed))
    assert isinstance(fact, RunEnded)
    assert fact.reason == "rank 1 was killed"


def out_of_memory(cap):
    return dataclasses.replace(KILLED, cause="has no memory", error="OutOfMemory", cap=cap)


def memory_run(num_shards=8, **policy):
    policy = dataclasses.replace(POLICY, num_shards=num_shards, **policy)
    return running(CoordinatorStateMachine(policy, [GenerationOpened(5, HOSTS)], 0.0))


def test_a_worker_with_memory_for_some_shards_is_started_again_with_a_cap():
    cluster = memory_run()
    actions = cluster.tell("b", failed={1: out_of_memory(2)})
    caps = {1: Cap(host="b", shards=2)}
    assert opened(actions) == [GenerationOpened(6, HOSTS, caps=caps)]
    sent = [each.desired.caps for each in actions if isinstance(each, SendDesiredState)]
    assert sent == [{1: 2}] * 3
    (second,) = opened(cluster.tell("c", generation=6, failed={2: out_of_memory(0)}))
    assert second.caps == {**caps, 2: Cap(host="c", shards=0)}
    assert second.members == {0: "a", 1: "b"}


def test_a_worker_without_memory_for_a_shard_is_not_started_again():
    cluster = memory_run()
    (first,) = opened(cluster.tell("b", failed={1: out_of_memory(0)}))
    others = {0: "a", 2: "c"}
    assert first.members == others
    # Not on its host when that reports again, nor when another worker fails.
    assert opened(cluster.tell("b", generation=6, failed={})) == []
    (second,) = opened(cluster.tell("a", generation=6, failed={0: KILLED}))
    assert second.members == others
    # Its rank is free again once its host is lost.
    (third,) = opened(cluster.run.handle(AgentLost("c"), now=9.0))
    assert third.members == {0: "a"}
    assert third.caps == first.caps
    cluster.run.handle(AgentLost("b"), now=9.0)
    status = Status(host="d", number=0, capacity=2)
    (fourth,) = opened(cluster.run.handle(StatusReceived(status), now=10.0))
    assert fourth.members == {0: "a", 1: "d", 2: "d"}
    assert fourth.caps == {}


def test_two_workers_of_one_generation_without_memory_are_both_left_out():
    cluster = memory_run()
    cluster.tell("b", failed={1: out_of_memory(0)})
    (second,) = opened(cluster.tell("c", failed={2: out_of_memory(0)}))  # of generation 5
    assert second.members == {0: "a"}
    assert opened(cluster.tell("c", failed={2: out_of_memory(0)})) == []  # the same report again


def test_a_late_lack_of_memory_is_all_that_counts_of_a_late_report():
    policy = RecoveryPolicy(world_size=3, min_workers=2, num_shards=8, max_failures=2)
    run = CoordinatorStateMachine(policy, [GenerationOpened(5, {0: "a", 1: "b", 2: "b"})], 0.0)
    of_then = {"capacity": 2, "generation": 5, "stage": Stage.RUN}
    tell(run, "a", 1, **of_then)
    tell(run, "b", 1, **of_then, failed={1: KILLED})
    failed = {1: KILLED, 2: out_of_memory(0)}
    (entry,) = opened(tell(run, "b", 2, **of_then, failed=failed))
    assert isinstance(entry, GenerationOpened), "one failure was counted twice"
    assert entry.caps == {2: Cap(host="b", shards=0)}
    assert run.root_cause == (2, out_of_memory(0))


def test_a_run_ends_when_all_its_workers_have_too_little_memory_together():
    for last in (3, 0):
        cluster = memory_run()
        cluster.tell("a", failed={0: out_of_memory(4)})
        cluster.tell("b", generation=6, failed={1: out_of_memory(0)})
        (end,) = opened(cluster.tell("c", generation=7, failed={2: out_of_memory(last)}))
        assert isinstance(end, RunEnded)
        assert end.reason == "rank 2 has no memory"
        assert end.root_cause == (2, out_of_memory(last))
    cluster = memory_run()
    cluster.tell("a", failed={0: out_of_memory(4)})
    cluster.tell("b", generation=6, failed={1: out_of_memory(0)})
    (entry,) = opened(cluster.tell("c", generation=7, failed={2: out_of_memory(4)}))
    assert isinstance(entry, GenerationOpened)


def test_what_is_known_of_memory_outlives_the_coordinator():
    policy = dataclasses.replace(POLICY, num_shards=8)
    caps = {1: Cap(host="b", shards=0)}
    others = {0: "a", 2: "c"}
    cluster = Cluster(CoordinatorStateMachine(policy, [GenerationOpened(5, others, caps=caps)], 0))
    cluster.tell("a", generation=5, stage=Stage.RUN)
    (entry,) = opened(cluster.tell("c", generation=5, stage=Stage.RUN, failed={2: KILLED}))
    assert entry == GenerationOpened(6, others, caps=caps)
    # It was told of while the coordinator was away.
    cluster = Cluster(CoordinatorStateMachine(policy, [GenerationOpened(5, HOSTS)], 0.0))
    cluster.tell("a", generation=5, stage=Stage.RUN)
    cluster.tell("c", generation=5, stage=Stage.RUN)
    failed = {1: out_of_memory(0)}
    (entry,) = opened(cluster.tell("b", generation=5, stage=Stage.RUN, failed=failed))
    assert entry == GenerationOpened(6, others, caps=caps)


def test_what_follows_from_another_failure_is_not_counted():
    policy = dataclasses.replace(POLICY, max_failures=1)
    cluster = running(CoordinatorStateMachine(policy, [GenerationOpened(5, HOSTS)], 0.0))
    (first,) = opened(cluster.tell("a", failed={0: KILLED}))
    cluster.tell_all(generation=6, stage=Stage.RUN, failed={})
    follows = Failure(cause="has no state to begin with", is_cascading=True)
    (second,) = opened(cluster.tell("b", failed={1: follows}))
    assert (first.generation, second.generation) == (6, 7)
    assert second.members == HOSTS
    cluster.tell_all(generation=7, stage=Stage.RUN, failed={})
    (third,) = opened(cluster.tell("b", failed={1: follows, 2: KILLED}))
    assert isinstance(third, RunEnded)
    assert "rank 2 was killed; restart budget exhausted: more than 1 failures" in third.reason


def test_agents_hear_that_a_command_shows_progress():
    run = CoordinatorStateMachine(POLICY, [GenerationOpened(5, HOSTS)], 0.0)
    running(run)
    sent = run.handle(ProgressRequested(), 9.0)
    assert [(each.host, each.desired.watched) for each in sent] == [(host, True) for host in "abc"]
    assert all(isinstance(each, SendDesiredState) for each in sent)


def halted(run, host, number, kind, **fields):
    """The host has halted in the newest generation, with a processor of this kind."""
    numerics = {"torch": "2", "processor": kind}
    where = {"generation": run.generation, "stage": Stage.HALT, "numerics": numerics}
    return tell(run, host, number, **where, **fields)


def test_a_host_unlike_the_first_is_refused_and_the_others_wait_for_another():
    run = machine()
    tell(run, "a", 1)
    tell(run, "b", 1)
    assert halted(run, "b", 2, "odd") == []
    refused, *_ = halted(run, "a", 2, "good")
    assert refused == RefuseHost("b", "its processor is odd, but good on a")
    assert (run.stage, run.members, run.hosts) == (Stage.HALT, {0: "a"}, {"a"})
    tell(run, "c", 1)
    halted(run, "c", 2, "good")
    halted(run, "a", 3, "good")
    assert (run.stage, run.members) == (Stage.RUN, {0: "a", 1: "c"})


def test_a_host_unlike_the_first_trains_where_the_job_allows_it():
    run = machine(allows_unlike_hosts=True)
    tell(run, "a", 1)
    tell(run, "b", 1)
    halted(run, "b", 2, "odd")
    halted(run, "a", 2, "good")
    assert (run.stage, run.members) == (Stage.RUN, {0: "a", 1: "b"})


def test_the_first_host_is_one_that_has_trained():
    run = CoordinatorStateMachine(
        RecoveryPolicy(world_size=2, min_workers=1), [GenerationOpened(5, {0: "a"})], 0.0
    )
    tell(run, "new", 1)
    halted(run, "a", 1, "good", committed={0: 7})
    assert run.members == {0: "a", 1: "new"}
    halted(run, "new", 2, "odd")
    refused, *_ = halted(run, "a", 2, "good", committed={0: 7})
    assert refused == RefuseHost("new", "its processor is odd, but good on a")
