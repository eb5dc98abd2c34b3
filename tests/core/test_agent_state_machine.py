"""The agent's machine: who is forked when."""

import pytest

from holdfast.core.actions import (
    Abort,
    CompleteCheckpoint,
    FindCheckpoint,
    ForkWorker,
    KeepSnapshot,
    KillWorker,
    PrepareCheckpoint,
    RemovePartialCheckpoints,
    SendCheckpointResult,
    SendStatus,
    ShutDownAgent,
)
from holdfast.core.agent import WATCHED_INTERVAL_S, AgentStateMachine
from holdfast.core.events import (
    CheckpointCompleted,
    CheckpointFound,
    CheckpointPrepared,
    DesiredStateReceived,
    EvictionRequested,
    PartStaged,
    Tick,
    WorkerExited,
    WorkerFinished,
    WorkerFit,
    WorkerHalted,
)
from holdfast.core.protocol import (
    CheckpointPart,
    CheckpointResult,
    DesiredState,
    Draft,
    Eviction,
    Failure,
    ResumePoint,
    Stage,
    StoredCheckpoint,
)

GONE = Failure(cause="was killed by SIGKILL")


def orders(generation, *ranks, restart_all=False):
    members = dict.fromkeys(ranks, "host")
    return DesiredStateReceived(
        DesiredState(
            generation=generation,
            stage=Stage.HALT,
            ranks=ranks,
            members=members,
            restart_all=restart_all,
        )
    )


def told(machine, *events):
    """What the machine wants at last, reports left out."""
    actions = []
    for event in events:
        actions = machine.handle(event, now=0.0)
        machine.check_invariants()
    return [action for action in actions if not isinstance(action, SendStatus)]


def halted(restart_all):
    """A machine whose two workers stand still in the first generation."""
    machine = AgentStateMachine("host", capacity=2, heartbeat_s=1.0, now=0.0)
    told(
        machine,
        orders(1, 0, 1, restart_all=restart_all),
        WorkerHalted(0, 1, None, 0),
        WorkerHalted(1, 1, None, 0),
        CheckpointFound(1, None),
    )
    assert machine.stage == Stage.HALT
    return machine


def test_a_lost_worker_alone_is_forked_again():
    machine = halted(restart_all=False)
    assert told(machine, WorkerExited(1, 2, GONE)) == [Abort(2)]
    assert told(machine, orders(2, 0, 1)) == [Abort(2), ForkWorker(1, 2, 3)]


def test_where_all_begin_anew_nobody_is_forked_before_the_last_is_gone():
    machine = halted(restart_all=True)
    told(machine, WorkerExited(1, 2, GONE))
    assert told(machine, orders(2, 0, 1, restart_all=True)) == [
        Abort(2, forgets=True),
        KillWorker(0, 1),
    ]
    assert machine.stage == Stage.IDLE
    assert told(machine, WorkerExited(0, 1, GONE)) == [ForkWorker(0, 2, 3), ForkWorker(1, 2, 4)]


def test_a_generation_that_ends_before_all_are_gone_forks_nobody():
    machine = halted(restart_all=True)
    told(machine, orders(2, 0, 1, restart_all=True), WorkerExited(0, 1, GONE))
    assert told(machine, orders(3, 0, restart_all=True)) == [Abort(3, forgets=True)]
    assert told(machine, WorkerExited(1, 2, GONE)) == [ForkWorker(0, 3, 3)]


def test_whose_seat_is_not_wanted_any_more_is_waited_for_too():
    machine = halted(restart_all=False)
    assert told(machine, orders(2, 0)) == [Abort(2), KillWorker(1, 2)]
    assert told(machine, orders(3, 0, 1)) == [Abort(3)]
    assert told(machine, WorkerExited(1, 2, GONE)) == [ForkWorker(1, 3, 3)]


def test_news_of_a_generation_before_does_not_undo_that_a_worker_stands_still():
    machine = halted(restart_all=False)
    told(
        machine, WorkerExited(1, 2, GONE), WorkerHalted(0, 2, None, 0), WorkerHalted(0, 1, None, 0)
    )
    assert told(machine, orders(2, 0, 1)) == [Abort(2), ForkWorker(1, 2, 3)]
    told(machine, WorkerHalted(1, 2, None, 0), CheckpointFound(2, None))
    assert machine.stage == Stage.HALT


SLOW = Eviction(rank=1, reason="compute", step=5, threshold_s=0.2, step_s=1.0)


def without_rank_1(generation, *, stage=Stage.HALT, **more):
    """What a host must do whose rank 1 is on standby."""
    desired = DesiredState(
        generation=generation,
        stage=stage,
        ranks=(0,),
        standbys={1: SLOW},
        members={0: "host"},
        **more,
    )
    return DesiredStateReceived(desired)


def with_one_on_standby():
    """A machine whose rank 0 trains in the second generation, without rank 1."""
    machine = halted(restart_all=False)
    start = ResumePoint(step=0, donors={})
    all_run = DesiredState(generation=1, stage=Stage.RUN, ranks=(0, 1), resume_point=start)
    told(machine, DesiredStateReceived(all_run))
    told(machine, without_rank_1(2), WorkerHalted(0, 2, 6, 0))
    assert machine.stage == Stage.IDLE, "rank 1 may still write to what members share"
    told(machine, WorkerHalted(1, 2, 6, 0))
    assert machine.stage == Stage.HALT
    start = ResumePoint(step=6, donors={0: 0})
    told(machine, without_rank_1(2, stage=Stage.RUN, resume_point=start))
    return machine


def status_of(machine):
    (report,) = machine.handle(Tick(), now=machine.next_deadline())
    return report.status


def test_a_worker_on_standby_keeps_its_process_and_is_waited_for_once():
    machine = with_one_on_standby()
    assert (machine.stage, machine.ranks, machine.standbys) == (Stage.RUN, (0,), {1: SLOW})
    assert told(machine, without_rank_1(3)) == [Abort(3)]
    assert machine.absent == [1]
    told(machine, WorkerHalted(0, 3, 7, 0))
    assert machine.stage == Stage.HALT
    assert status_of(machine).committed == {0: 7}


def test_a_worker_that_returns_is_waited_for():
    machine = with_one_on_standby()
    assert told(machine, orders(3, 0, 1), WorkerHalted(0, 3, 7, 0)) == []
    assert machine.stage == Stage.IDLE
    told(machine, WorkerHalted(1, 3, None, 0))
    assert machine.stage == Stage.HALT


def test_what_workers_find_is_reported_until_the_next_generation():
    machine = with_one_on_standby()
    other = Eviction(rank=0, reason="compute", step=9, threshold_s=0.2, step_s=1.0)
    told(machine, EvictionRequested(1, other), WorkerFit(0))
    assert (status_of(machine).eviction, status_of(machine).fit) == (None, frozenset())
    told(machine, EvictionRequested(2, other), WorkerFit(1))
    assert (status_of(machine).eviction, status_of(machine).fit) == (other, {1})
    told(machine, without_rank_1(3))
    assert (status_of(machine).eviction, status_of(machine).fit) == (None, {1})
    told(machine, orders(4, 0, 1))
    assert status_of(machine).fit == frozenset()


def test_a_worker_that_ends_on_standby_is_forked_once_it_is_a_member():
    machine = with_one_on_standby()
    assert told(machine, WorkerExited(1, 2, GONE)) == [Abort(3)]
    assert told(machine, without_rank_1(3)) == [Abort(3)]
    assert status_of(machine).fit == {1}
    assert told(machine, orders(4, 0, 1)) == [Abort(4), ForkWorker(1, 4, 3)]


def test_a_run_ends_well_with_a_worker_on_standby():
    machine = with_one_on_standby()
    told(machine, WorkerFinished(0, 2, {}))
    end = DesiredStateReceived(DesiredState(generation=2, stage=Stage.END))
    assert told(machine, end) == [ShutDownAgent("")]


NEWEST = StoredCheckpoint(step=8, name="step-00000008")


def test_a_host_without_a_state_says_what_checkpoint_it_has():
    machine = AgentStateMachine("host", capacity=1, heartbeat_s=1.0, now=0.0)
    assert told(machine, orders(1, 0), WorkerHalted(0, 1, None, 0)) == [FindCheckpoint(1)]
    assert told(machine, WorkerHalted(0, 1, None, 0), CheckpointFound(0, None)) == []
    assert machine.stage == Stage.IDLE
    (sent,) = machine.handle(CheckpointFound(1, NEWEST), now=0.0)
    assert (sent.status.stage, sent.status.newest_checkpoint) == (Stage.HALT, NEWEST)


def test_a_host_with_a_state_looks_for_no_checkpoint():
    machine = AgentStateMachine("host", capacity=2, heartbeat_s=1.0, now=0.0)
    told(machine, orders(1, 0, 1), WorkerHalted(0, 1, None, 0), WorkerHalted(1, 1, 7, 0))
    assert machine.stage == Stage.HALT


def resumed():
    """A machine whose two workers train in the first generation."""
    machine = halted(restart_all=False)
    start = ResumePoint(step=0, donors={})
    desired = DesiredState(generation=1, stage=Stage.RUN, ranks=(0, 1), resume_point=start)
    first, *_ = told(machine, DesiredStateReceived(desired))
    assert first == RemovePartialCheckpoints(1), "before workers write in this generation"
    return machine


def decided(machine, generation=1, error=""):
    result = CheckpointResult(generation=generation, number=1, step=8, error=error)
    desired = DesiredState(generation=generation, stage=Stage.RUN, checkpoint_result=result)
    return told(machine, DesiredStateReceived(desired)), result


def test_a_checkpoint_is_prepared_reported_completed_and_told_in_this_order():
    machine, part = resumed(), CheckpointPart(number=1, step=8, count=2)
    assert told(machine, PartStaged(1, 1, part)) == []
    parts = {0: part, 1: part}
    assert told(machine, PartStaged(0, 1, part)) == [PrepareCheckpoint(1, parts)]
    assert decided(machine)[0] == []  # of another try: this one is not prepared yet
    draft = Draft(number=1, step=8, root="r")
    (sent,) = machine.handle(CheckpointPrepared(1, draft), now=0.0)
    assert sent.status.draft == draft
    (complete,), result = decided(machine)
    assert complete == CompleteCheckpoint(result)
    assert decided(machine)[0] == []
    own = CheckpointResult(generation=1, number=1, step=8, error="read-only")
    assert told(machine, CheckpointCompleted(own)) == [SendCheckpointResult(own)]
    (sent,) = machine.handle(Tick(), now=9.0)
    assert (sent.status.draft, sent.status.checkpoint_result) == (None, result)


def test_a_run_that_fails_leaves_its_newest_snapshot():
    machine, part = resumed(), CheckpointPart(number=1, step=8, count=1, in_memory=True)
    assert told(machine, PartStaged(0, 1, part)) == [KeepSnapshot(1, 1)]
    ended = DesiredState(generation=1, stage=Stage.END, reason="too many failures")
    *_, write, leave = told(machine, DesiredStateReceived(ended))
    assert write == PrepareCheckpoint(1, {0: part})
    assert leave == ShutDownAgent("too many failures")


def test_what_a_disk_did_for_an_older_generation_does_not_count():
    machine = resumed()
    told(machine, orders(2, 0, 1))
    assert machine.handle(CheckpointPrepared(1, Draft(number=1, step=8)), now=0.0) == []
    old = CheckpointResult(generation=1, number=1, step=8)
    assert machine.handle(CheckpointCompleted(old), now=0.0) == []


def test_statuses_come_more_often_while_a_command_shows_progress():
    machine = AgentStateMachine("host", capacity=2, heartbeat_s=1.0, now=0.0)
    for watched, interval_s in ((False, 1.0), (True, WATCHED_INTERVAL_S)):
        desired = DesiredState(generation=0, stage=Stage.IDLE, watched=watched)
        machine.handle(DesiredStateReceived(desired), now=0.0)
        now = machine.next_deadline()
        assert isinstance(machine.handle(Tick(), now)[0], SendStatus)
        assert machine.next_deadline() == now + interval_s


def test_a_status_between_two_heartbeats_does_not_move_them():
    machine = AgentStateMachine("host", capacity=1, heartbeat_s=1.0, now=0.25)
    machine.handle(Tick(), now=0.25)
    machine.handle(orders(1, 0), now=0.5)
    machine.handle(WorkerHalted(0, 1, None, 0), now=0.6)
    (sent,) = machine.handle(CheckpointFound(1, None), now=0.75)
    assert isinstance(sent, SendStatus)
    assert machine.next_deadline() == 1.25
    machine.handle(Tick(), now=3.5)
    assert machine.next_deadline() == 4.25, "a late one does not move them either"


@pytest.mark.parametrize(("hosts", "interval_s"), [(2, WATCHED_INTERVAL_S), (500, 0.5), (3000, 1)])
def test_many_hosts_together_send_no_more_than_some_statuses_per_second(hosts, interval_s):
    machine = AgentStateMachine("0", capacity=1, heartbeat_s=1.0, now=0.0)
    members = {rank: str(rank) for rank in range(hosts)}
    desired = DesiredState(
        generation=1, stage=Stage.HALT, ranks=(0,), members=members, watched=True
    )
    machine.handle(DesiredStateReceived(desired), now=0.0)
    machine.handle(Tick(), now=0.0)
    assert machine.next_deadline() == interval_s
