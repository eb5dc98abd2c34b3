"""A generation in which no member has a state resumes from a checkpoint that it names."""

import pytest

from holdfast.core.actions import SendDesiredState
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import StatusReceived
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import ResumePoint, Stage, Status, StoredCheckpoint

POLICY = RecoveryPolicy(world_size=1, min_workers=1)
FOUND = StoredCheckpoint(step=200, name="step-00000200")


def halt(machine, **fields):
    status = Status(
        host="a", number=2, generation=machine.generation, stage=Stage.HALT, capacity=1, **fields
    )
    return machine.handle(StatusReceived(status), 1.0)


@pytest.fixture
def machine():
    found = CoordinatorStateMachine(POLICY, [], 0.0)
    found.handle(StatusReceived(Status(host="a", number=1, capacity=1)), 0.0)
    assert (found.generation, found.stage) == (1, Stage.HALT)
    return found


def test_a_state_of_a_member_needs_no_checkpoint(machine):
    halt(machine, committed={0: 7})
    assert machine.resume_point == ResumePoint(step=7, donors={0: 0})


@pytest.mark.parametrize(
    ("checkpoint", "start"),
    [
        (None, ResumePoint(step=0, donors={})),
        (FOUND, ResumePoint(step=200, donors={}, checkpoint="step-00000200")),
    ],
)
def test_without_a_state_the_resume_point_names_the_checkpoint(machine, checkpoint, start):
    actions = halt(machine, newest_checkpoint=checkpoint)
    assert machine.resume_point == start
    (sent,) = [each for each in actions if isinstance(each, SendDesiredState)]
    assert sent.desired.resume_point == start
