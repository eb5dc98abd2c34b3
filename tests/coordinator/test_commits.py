"""A commit that is asked for again, because nobody lived to hear of the first one."""

import math

import pytest
from test_checkpoint_retention import commit

from checkpoints import ATTEMPT, store_in
from holdfast.coordinator.checkpoints import Checkpoints
from holdfast.observe.lines import EventLog


@pytest.fixture
def checkpoints(tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    with (
        EventLog(tmp_path / "events.jsonl") as log,
        Checkpoints(store_in(root), ATTEMPT, 9, log) as found,
    ):
        yield found, root


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf])
def test_the_same_checkpoint_is_committed_once(checkpoints, value):
    found, root = checkpoints
    commit(found, root, 3, state={"value": value})
    inode = (root / "step-00000003").stat().st_ino
    commit(found, root, 3, state={"value": value})
    assert (root / "step-00000003").stat().st_ino == inode


def test_another_state_of_the_same_step_takes_its_place(checkpoints):
    found, root = checkpoints
    commit(found, root, 3, state={"value": 1})
    commit(found, root, 3, state={"value": 2})
    assert store_in(root).manifest("step-00000003").state == {"value": 2}
    assert store_in(root).committed() == ["step-00000003"]
