"""The agent's machine: who is forked when."""

from holdfast.core.actions import Abort, Fork, Kill, Report
from holdfast.core.agent import Supervisor
from holdfast.core.events import Exited, Ordered, Parked
from holdfast.core.protocol import Failure, Orders, Stage

GONE = Failure(cause="was killed by SIGKILL")


def orders(generation, *ranks, anew=False):
    members = dict.fromkeys(ranks, "host")
    return Ordered(
        Orders(generation=generation, stage=Stage.HALT, ranks=ranks, members=members, anew=anew)
    )


def told(machine, *events):
    """What the machine wants at last, reports left out."""
    actions = []
    for event in events:
        actions = machine.handle(event, now=0.0)
        machine.check_invariants()
    return [action for action in actions if not isinstance(action, Report)]


def halted(anew):
    """A machine whose two workers stand still in the first generation."""
    machine = Supervisor("host", room=2, heartbeat_s=1.0, now=0.0)
    told(machine, orders(1, 0, 1, anew=anew), Parked(0, 1, None, 0), Parked(1, 1, None, 0))
    assert machine.stage == Stage.HALT
    return machine


def test_a_lost_worker_alone_is_forked_again():
    machine = halted(anew=False)
    assert told(machine, Exited(1, 2, GONE)) == [Abort(2)]
    assert told(machine, orders(2, 0, 1)) == [Abort(2), Fork(1, 2, 3)]


def test_where_all_begin_anew_nobody_is_forked_before_the_last_is_gone():
    machine = halted(anew=True)
    told(machine, Exited(1, 2, GONE))
    assert told(machine, orders(2, 0, 1, anew=True)) == [Abort(2), Kill(0, 1)]
    assert machine.stage == Stage.IDLE
    assert told(machine, Exited(0, 1, GONE)) == [Fork(0, 2, 3), Fork(1, 2, 4)]


def test_a_generation_that_ends_before_all_are_gone_forks_nobody():
    machine = halted(anew=True)
    told(machine, orders(2, 0, 1, anew=True), Exited(0, 1, GONE))
    assert told(machine, orders(3, 0, anew=True)) == [Abort(3)]
    assert told(machine, Exited(1, 2, GONE)) == [Fork(0, 3, 3)]


def test_whose_seat_is_not_wanted_any_more_is_waited_for_too():
    machine = halted(anew=False)
    assert told(machine, orders(2, 0)) == [Abort(2), Kill(1, 2)]
    assert told(machine, orders(3, 0, 1)) == [Abort(3)]
    assert told(machine, Exited(1, 2, GONE)) == [Fork(1, 3, 3)]


def test_news_of_a_generation_before_does_not_undo_that_a_worker_stands_still():
    machine = halted(anew=False)
    told(machine, Exited(1, 2, GONE), Parked(0, 2, None, 0), Parked(0, 1, None, 0))
    assert told(machine, orders(2, 0, 1)) == [Abort(2), Fork(1, 2, 3)]
    told(machine, Parked(1, 2, None, 0))
    assert machine.stage == Stage.HALT
