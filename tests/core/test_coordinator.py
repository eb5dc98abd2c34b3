"""The coordinator's machine: who is in, in which stage, and what it sends."""

from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import CheckpointFound, StatusReceived
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Failure, Stage, Status


def machine(workers=2):
    return CoordinatorStateMachine(RecoveryPolicy(world_size=workers, min_workers=workers), [], 0.0)


def tell(run, host, number, **fields):
    status = Status(host=host, number=number, capacity=1, **fields)
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
    assert run.waiting_for() == "the newest checkpoint to be found"
    run.handle(CheckpointFound(None), 0.0)
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
