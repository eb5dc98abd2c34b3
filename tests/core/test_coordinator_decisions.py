"""The coordinator's machine: what it decides of checkpoints, of a stop and of the end."""

import pytest

from holdfast.core.actions import AppendToJournal, GenerationOpened, RunEnded, SendDesiredState
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import StatusReceived, StopReceived, Tick
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import CheckpointResult, Draft, Failure, Stage, Status

MEMBERS = {0: "a", 1: "b"}
KILLED = Failure(cause="was killed")
OPENED = GenerationOpened(5, MEMBERS)


def machine(*more, **policy):
    given = RecoveryPolicy(**{"world_size": 2, "min_workers": 2, **policy})
    return CoordinatorStateMachine(given, [OPENED, *more], 0.0)


def tell(run, host, *, now=1.0, generation=5, stage=Stage.RUN, **fields):
    status = Status(host=host, number=1, generation=generation, stage=stage, capacity=1, **fields)
    actions = run.handle(StatusReceived(status), now)
    run.check_invariants()
    return actions


def training(**policy):
    """A coordinator whose two workers train in generation 5."""
    run = machine(**policy)
    assert [tell(run, host) for host in "ab"] == [[], []]
    assert (run.stage, run.waiting_for()) == (Stage.RUN, "")
    return run


def entries(actions):
    return [each.entry for each in actions if isinstance(each, AppendToJournal)]


def sent(actions):
    """The desired state of each host that is sent one."""
    return {each.host: each.desired for each in actions if isinstance(each, SendDesiredState)}


def test_a_run_ends_once_all_workers_have_finished():
    run = training()
    assert tell(run, "a", finished=frozenset({0}), result={"loss": 1}) == []
    actions = tell(run, "b", finished=frozenset({1}))
    assert entries(actions) == [RunEnded("", None, {"loss": 1})]
    assert {host: each.stage for host, each in sent(actions).items()} == dict.fromkeys(
        "ab", Stage.END
    )
    assert (run.stage, run.reason, run.result) == (Stage.END, "", {"loss": 1})
    assert (run.waiting_for(), run.next_deadline()) == ("", None)


def test_a_run_that_is_over_says_so_to_all_that_report():
    root = (1, KILLED)
    run = machine(RunEnded("rank 1 was killed", root, {"loss": 1}))
    assert (run.stage, run.reason, run.root_cause) == (Stage.END, "rank 1 was killed", root)
    assert run.result == {"loss": 1}
    desired = sent(tell(run, "a"))["a"]
    assert (desired.stage, desired.reason) == (Stage.END, "rank 1 was killed")
    assert run.next_deadline() is None
    assert run.handle(Tick(), 1e6) == []


def test_a_run_that_is_aborted_names_the_reason():
    run = training()
    actions = run.handle(StopReceived(at_once=True), 2.0)
    assert entries(actions) == [RunEnded("the run was aborted")]
    assert run.reason == "the run was aborted"
    assert {each.reason for each in sent(actions).values()} == {"the run was aborted"}


def test_a_fatal_failure_is_the_reason_and_the_root_cause():
    run = training()
    fatal = Failure(cause="has no memory", fatal=True)
    (entry,) = entries(tell(run, "b", failed={1: fatal}))
    assert entry == RunEnded("rank 1 has no memory", (1, fatal))
    assert (run.reason, run.root_cause) == ("rank 1 has no memory", (1, fatal))


def test_a_worker_that_has_failed_is_no_member_until_it_is_replaced():
    run = training(min_workers=1, regrow_delay_s=60.0)
    (entry,) = entries(tell(run, "b", failed={1: KILLED}))
    assert entry.members == {0: "a"}
    assert run.members == {0: "a"}


def test_a_stop_that_one_agent_knows_of_is_sent_to_the_others():
    run = training()
    assert tell(run, "a", stop=True) == []
    assert sent(tell(run, "b"))["b"].stop
    assert tell(run, "b", stop=True) == []


def test_the_result_of_a_checkpoint_is_sent_once_all_hosts_have_written_it():
    run = training()
    draft = Draft(number=1, step=8, root="r")
    assert tell(run, "a", draft=draft) == []
    result = CheckpointResult(generation=5, number=1, step=8)
    decided = sent(tell(run, "b", draft=draft))
    assert {host: each.checkpoint_result for host, each in decided.items()} == {
        "a": result, "b": result
    }  # fmt: skip
    assert sent(tell(run, "a", draft=draft))["a"].checkpoint_result == result
    assert tell(run, "a") == []


def test_a_checkpoint_is_requested_when_it_is_due_and_until_workers_know():
    run = training(checkpoint_s=10.0, heartbeat_timeout_s=99.0)
    assert run.handle(Tick(), 9.9) == []
    assert run.next_deadline() == 10.0
    requests = sent(run.handle(Tick(), 10.0))
    assert [each.requested_checkpoint for each in requests.values()] == [1, 1]
    assert sent(tell(run, "a"))["a"].requested_checkpoint == 1
    assert tell(run, "a", requested_checkpoint=1) == []
    opened = sent(tell(run, "b", failed={1: KILLED}))
    assert [each.requested_checkpoint for each in opened.values()] == [0, 0]


@pytest.mark.parametrize("lost", [False, True])
def test_a_checkpoint_that_was_lost_is_requested_of_the_next_generation(lost):
    run = training()
    tell(run, "b", failed={1: KILLED})
    halted = {"generation": 6, "stage": Stage.HALT}
    assert tell(run, "a", **halted, committed={0: 8}, lost_checkpoint=lost) == []
    resumed = sent(tell(run, "b", **halted))
    assert {each.stage for each in resumed.values()} == {Stage.RUN}
    assert [each.requested_checkpoint for each in resumed.values()] == [int(lost)] * 2
    assert {each.resume_point.step for each in resumed.values()} == {8}
