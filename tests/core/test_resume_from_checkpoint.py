"""A generation in which no member has a state resumes from a checkpoint that it names."""

import pytest

from holdfast.core.actions import FindCheckpoint, SendDesiredState
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import CheckpointFound, StatusReceived
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import ResumePoint, Stage, Status, StoredCheckpoint

POLICY = RecoveryPolicy(world_size=1, min_workers=1)
FOUND = StoredCheckpoint(step=200, name="step-00000200")


def halt(machine, *, number=2, committed=None):
    status = Status(
        host="a", number=number, generation=machine.generation, stage=Stage.HALT, capacity=1,
        committed=committed or {},
    )  # fmt: skip
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
    assert halt(machine) == [FindCheckpoint()]
    assert machine.stage == Stage.HALT
    actions = machine.handle(CheckpointFound(checkpoint), 1.0)
    assert machine.resume_point == start
    (sent,) = [each for each in actions if isinstance(each, SendDesiredState)]
    assert sent.desired.resume_point == start


def test_an_answer_that_comes_late_changes_nothing(machine):
    halt(machine)
    machine.handle(CheckpointFound(FOUND), 1.0)
    assert machine.handle(CheckpointFound(None), 1.0) == []
    assert machine.resume_point.checkpoint == FOUND.name
