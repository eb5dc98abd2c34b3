"""The agent's machine: what its statuses say, and what it passes on to its workers."""

import pytest

from holdfast.core.actions import (
    Abort,
    FindCheckpoint,
    KillWorker,
    ProbeHost,
    RemovePartialCheckpoints,
    RequestSave,
    RequestStop,
    ResumeWorkers,
    SendStatus,
    ShutDownAgent,
)
from holdfast.core.agent import AgentStateMachine
from holdfast.core.events import (
    CheckpointFound,
    DesiredStateReceived,
    EvictionRequested,
    LeaveRequested,
    PartStaged,
    PeerReported,
    ProbeCompleted,
    Tick,
    WorkerExited,
    WorkerFinished,
    WorkerHalted,
)
from holdfast.core.protocol import (
    CheckpointPart,
    DesiredState,
    Eviction,
    Failure,
    Probe,
    ResumePoint,
    Stage,
    StoredCheckpoint,
)

START = ResumePoint(step=7, donors={0: 0, 1: 0})
MEMBERS = {0: "a", 1: "a", 2: "b"}
SLOW = Eviction(rank=1, reason="compute", step=5, threshold_s=0.2, step_s=1.0)


def desired(stage=Stage.HALT, generation=1, ranks=(0, 1), **fields):
    fields = {"members": MEMBERS, "resume_point": START if stage == Stage.RUN else None, **fields}
    return DesiredStateReceived(
        DesiredState(generation=generation, stage=stage, ranks=ranks, **fields)
    )


def agent(*events):
    machine = AgentStateMachine("a", capacity=2, heartbeat_s=1.0, now=0.0, probe_address="a:1")
    for event in events:
        machine.handle(event, 0.0)
    return machine


HALTED = (
    desired(),
    WorkerHalted(0, 1, committed=7, reduced_step=8, address="a:2", numerics={"torch": "2"}),
    WorkerHalted(1, 1, committed=None, reduced_step=0, left=6),
)
RUNNING = (*HALTED, desired(Stage.RUN, addresses={2: "b:9"}))


def statuses(actions):
    return [action.status for action in actions if isinstance(action, SendStatus)]


def others(actions):
    return [action for action in actions if not isinstance(action, SendStatus)]


def status_of(machine):
    """The status that is sent with the next heartbeat."""
    (status,) = statuses(machine.handle(Tick(), machine.next_deadline()))
    return status


def test_a_status_names_the_host_and_what_it_can_run():
    status = status_of(agent())
    assert (status.host, status.capacity, status.probe_address) == ("a", 2, "a:1")
    assert (status.generation, status.stage, status.number) == (0, Stage.IDLE, 1)
    assert (status.stop, status.leaves, status.requested_checkpoint) == (False, False, 0)


def test_every_status_has_a_higher_number():
    machine = agent()
    assert [status_of(machine).number for _ in range(3)] == [1, 2, 3]


def test_a_heartbeat_is_sent_when_it_is_due_and_not_before():
    machine = agent()
    status_of(machine)
    assert machine.next_deadline() == 1.0
    assert machine.handle(Tick(), 0.9) == []
    assert len(statuses(machine.handle(Tick(), 1.0))) == 1


def test_a_halted_host_reports_what_its_workers_have():
    machine = agent(*HALTED)
    status = status_of(machine)
    assert (status.generation, status.stage) == (1, Stage.HALT)
    assert status.committed == {0: 7}
    assert status.left == {1: 6}
    assert status.reduced_step == 8
    assert status.addresses == {0: "a:2"}
    assert status.numerics == {"torch": "2"}
    assert status.newest_checkpoint is None


def test_what_workers_had_when_they_halted_is_not_reported_while_they_train():
    status = status_of(agent(*RUNNING))
    assert (status.generation, status.stage) == (1, Stage.RUN)
    assert (status.committed, status.left, status.reduced_step) == ({}, {}, 0)


def test_a_host_without_a_state_reports_its_checkpoint_until_it_trains():
    halted = [WorkerHalted(rank, 1, None, 0) for rank in (0, 1)]
    found = StoredCheckpoint(step=4, name="step-4")
    machine = agent(desired(), *halted, CheckpointFound(1, found))
    assert status_of(machine).newest_checkpoint == found
    machine.handle(desired(Stage.RUN), 0.0)
    assert status_of(machine).newest_checkpoint is None
    machine.handle(desired(generation=2), 0.0)
    again = [machine.handle(WorkerHalted(rank, 2, None, 0), 0.0) for rank in (0, 1)]
    assert again == [[], [FindCheckpoint(2)]]
    assert machine.handle(WorkerHalted(1, 2, None, 0), 0.0) == []  # the same report again
    assert machine.stage == Stage.IDLE


def test_workers_that_have_all_halted_resume_once():
    machine = agent(*HALTED)
    run = desired(Stage.RUN, addresses={2: "b:9"})
    actions = machine.handle(run, 0.0)
    assert others(actions) == [
        RemovePartialCheckpoints(1),
        ResumeWorkers(1, START, {2: "b:9"}),
    ]
    assert [status.stage for status in statuses(actions)] == [Stage.RUN]
    assert machine.handle(run, 0.0) == []


def test_workers_do_not_resume_before_all_have_halted_or_after_a_failure():
    waits = agent(*HALTED[:2])
    assert waits.handle(desired(Stage.RUN), 0.0) == []
    assert waits.stage == Stage.IDLE
    failed = agent(*HALTED, WorkerExited(1, 2, Failure(cause="was killed")))
    assert failed.handle(desired(Stage.RUN), 0.0) == []
    assert failed.stage == Stage.HALT


def test_a_failure_is_reported_at_once_and_wakes_the_others():
    machine = agent(*RUNNING)
    killed = Failure(cause="was killed")
    actions = machine.handle(WorkerExited(1, 2, killed), 0.5)
    assert others(actions) == [Abort(2)]
    assert [status.failed for status in statuses(actions)] == [{1: killed}]
    assert machine.failed == {1: killed}
    machine.handle(desired(generation=2), 0.6)
    assert status_of(machine).failed == {}


def test_an_older_desired_state_changes_nothing():
    machine = agent(desired(generation=3))
    assert machine.handle(desired(generation=2, stop=True, requested_checkpoint=4), 0.0) == []
    status = status_of(machine)
    assert (status.generation, status.stop) == (3, False)


def test_a_stop_is_passed_on_once_and_stays():
    machine = agent(*RUNNING)
    actions = machine.handle(desired(Stage.RUN, stop=True), 0.0)
    assert others(actions) == [RequestStop()]
    assert [status.stop for status in statuses(actions)] == [True]
    assert machine.handle(desired(Stage.RUN, stop=True), 0.0) == []
    machine.handle(desired(generation=2), 0.0)
    assert status_of(machine).stop


def test_a_checkpoint_is_requested_of_workers_once_and_while_they_train():
    machine = agent(*HALTED)
    assert machine.handle(desired(requested_checkpoint=1), 0.0) == []
    machine.handle(desired(Stage.RUN), 0.0)
    for number in (1, 2):
        request = desired(Stage.RUN, requested_checkpoint=number)
        actions = machine.handle(request, 0.0)
        assert others(actions) == [RequestSave(1, number)]
        assert [status.requested_checkpoint for status in statuses(actions)] == [number]
        assert machine.handle(request, 0.0) == []
    machine.handle(desired(generation=2), 0.0)
    assert status_of(machine).requested_checkpoint == 0


def test_a_checkpoint_that_some_workers_have_begun_is_lost_with_the_generation():
    part = CheckpointPart(number=1, step=8, count=2)
    machine = agent(*RUNNING, PartStaged(0, 1, part))
    assert not status_of(machine).lost_checkpoint
    halted = [WorkerHalted(rank, 2, committed=8, reduced_step=0) for rank in (0, 1)]
    for event in (desired(generation=2), *halted):
        machine.handle(event, 0.0)
    assert status_of(machine).lost_checkpoint
    again = [WorkerHalted(rank, 3, committed=8, reduced_step=0) for rank in (0, 1)]
    for event in (desired(Stage.RUN, 2), desired(generation=3), *again):
        machine.handle(event, 0.0)
    assert machine.stage == Stage.HALT
    assert not status_of(machine).lost_checkpoint


def test_workers_that_finish_are_reported_with_the_newest_result():
    machine = agent(*RUNNING)
    assert status_of(machine).result is None
    assert machine.handle(WorkerFinished(0, 2, {"loss": 9}), 0.0) == []  # of another generation
    assert machine.handle(WorkerFinished(2, 1, {"loss": 9}), 0.0) == []  # of another host
    (status,) = statuses(machine.handle(WorkerFinished(1, 1, {"loss": 1}), 0.0))
    assert (status.finished, status.result) == ({1}, {"loss": 1})
    machine.handle(desired(generation=2), 0.0)
    status = status_of(machine)
    assert (status.finished, status.result) == (frozenset(), None)


def test_an_eviction_is_reported_in_its_generation_alone():
    machine = agent(*RUNNING)
    assert machine.handle(EvictionRequested(2, SLOW), 0.0) == []
    (status,) = statuses(machine.handle(EvictionRequested(1, SLOW), 0.0))
    assert status.eviction == SLOW
    machine.handle(desired(generation=2), 0.0)
    assert status_of(machine).eviction is None


def test_a_host_asks_once_to_leave_and_says_so_from_then_on():
    machine = agent(*RUNNING)
    (status,) = statuses(machine.handle(LeaveRequested(), 0.0))
    assert status.leaves
    assert machine.handle(LeaveRequested(), 0.0) == []
    assert status_of(machine).leaves


def test_a_probe_is_begun_once_and_its_result_reported_until_it_is_asked_for_no_more():
    machine = agent(*RUNNING)
    probe, other = Probe(5, "b", "b:1"), Probe(6, "c", "c:1")
    assert machine.handle(desired(Stage.RUN, probes=(probe,)), 0.0) == [ProbeHost(probe)]
    assert status_of(machine).probed == {}
    both = desired(Stage.RUN, probes=(probe, other))
    assert machine.handle(both, 0.0) == [ProbeHost(other)]
    (status,) = statuses(machine.handle(ProbeCompleted(5, is_reached=False), 0.0))
    assert status.probed == {5: False}
    assert machine.handle(both, 0.0) == []
    assert status_of(machine).probed == {5: False}
    machine.handle(desired(Stage.RUN, probes=(other,)), 0.0)
    assert status_of(machine).probed == {}
    assert machine.handle(ProbeCompleted(5, is_reached=True), 0.0) == []


@pytest.mark.parametrize(
    ("events", "reported"),
    [
        (RUNNING, PeerReported(2, peer=2, is_broken=True)),  # another generation
        (RUNNING, PeerReported(1, peer=5, is_broken=True)),  # no member
        (HALTED, PeerReported(1, peer=2, is_broken=True)),
    ],
)
def test_a_peer_is_probed_only_while_the_generation_trains(events, reported):
    assert agent(*events).handle(reported, 0.0) == []


def test_a_peer_whose_address_is_known_is_probed():
    (probed,) = agent(*RUNNING).handle(PeerReported(1, peer=2, is_broken=True), 0.0)
    assert (probed.probe.host, probed.probe.address) == ("b", "b:9")


def test_a_run_that_fails_ends_with_its_workers():
    machine = agent(*RUNNING)
    actions = machine.handle(desired(Stage.END, reason="rank 2 was killed"), 0.0)
    assert actions == [
        Abort(2), KillWorker(0, 1), KillWorker(1, 2), ShutDownAgent("rank 2 was killed")
    ]  # fmt: skip
    assert machine.next_deadline() is None
    assert machine.handle(desired(generation=9), 0.0) == []


def test_workers_that_have_finished_exit_by_themselves():
    finished = [WorkerFinished(rank, 1, {}) for rank in (0, 1)]
    end = desired(Stage.END)
    assert agent(*RUNNING, *finished).handle(end, 0.0) == [ShutDownAgent("")]
    kills = [Abort(2), KillWorker(0, 1), KillWorker(1, 2), ShutDownAgent("")]
    assert agent(*RUNNING, *finished[:1]).handle(end, 0.0) == kills


def test_a_host_without_ranks_does_not_report_that_it_has_halted():
    machine = agent(desired(ranks=()))
    assert (machine.stage, machine.ranks) == (Stage.IDLE, ())
    assert status_of(machine).stage == Stage.IDLE


def test_caps_are_those_of_the_newest_generation():
    machine = agent(desired(caps={1: 3}))
    assert machine.caps == {1: 3}
    machine.handle(desired(generation=2), 0.0)
    assert machine.caps == {}
