"""The agent's machine: who is forked when."""

from holdfast.core.actions import Abort, ForkWorker, KillWorker, SendStatus
from holdfast.core.agent import WATCHED_INTERVAL_S, AgentStateMachine
from holdfast.core.events import DesiredStateReceived, Tick, WorkerExited, WorkerHalted
from holdfast.core.protocol import DesiredState, Failure, Stage

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
    assert told(machine, orders(2, 0, 1, restart_all=True)) == [Abort(2), KillWorker(0, 1)]
    assert machine.stage == Stage.IDLE
    assert told(machine, WorkerExited(0, 1, GONE)) == [ForkWorker(0, 2, 3), ForkWorker(1, 2, 4)]


def test_a_generation_that_ends_before_all_are_gone_forks_nobody():
    machine = halted(restart_all=True)
    told(machine, orders(2, 0, 1, restart_all=True), WorkerExited(0, 1, GONE))
    assert told(machine, orders(3, 0, restart_all=True)) == [Abort(3)]
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
    told(machine, WorkerHalted(1, 2, None, 0))
    assert machine.stage == Stage.HALT


def test_statuses_come_more_often_while_a_command_shows_progress():
    machine = AgentStateMachine("host", capacity=2, heartbeat_s=1.0, now=0.0)
    for watched, interval_s in ((False, 1.0), (True, WATCHED_INTERVAL_S)):
        desired = DesiredState(generation=0, stage=Stage.IDLE, watched=watched)
        machine.handle(DesiredStateReceived(desired), now=0.0)
        now = machine.next_deadline()
        assert isinstance(machine.handle(Tick(), now)[0], SendStatus)
        assert machine.next_deadline() == now + interval_s
