"""Which replicas are complete, of which step, and what lost workers have left with them."""

import os

import pytest
import torch

from holdfast.arena.device.mapped import MappedLayout, MappedMemory
from holdfast.arena.intact_replicas import (
    NUM_PROGRESSES,
    PROGRESS_BYTES,
    IntactReplicas,
    has_progress,
)
from holdfast.arena.memory import Arena


def progresses():
    return torch.zeros((3, NUM_PROGRESSES, PROGRESS_BYTES), dtype=torch.uint8)


@pytest.fixture
def arena():
    made = Arena.create(3)
    yield made
    made.close()


@pytest.fixture
def intact(arena):
    return IntactReplicas(arena, progresses())


def test_a_replica_is_intact_between_changes_and_of_one_step_only(intact):
    assert not intact.is_intact(0, 0)
    intact.end_change(0, 0)
    assert intact.is_intact(0, 0)
    assert not intact.is_intact(0, 1)
    intact.begin_change(0)
    assert not intact.is_intact(0, 0)


def test_no_replica_outlives_a_rollback(intact, arena):
    intact.end_change(2, 9, b"progress")
    arena.forget_replicas()
    assert not any(intact.is_intact(2, step) for step in range(20))
    assert arena.intact_step(2) is None


def test_a_worker_leaves_its_state_but_in_an_update(intact, arena):
    assert arena.intact_step(1) is None
    intact.end_change(1, 9, b"progress")
    assert (arena.intact_step(1), intact.progress(1)) == (9, b"progress")
    intact.begin_change(1)
    assert arena.intact_step(1) is None
    intact.end_change(1, 10, b"more")
    assert (arena.intact_step(1), intact.progress(1)) == (10, b"more")


@pytest.mark.parametrize("progress", [b"", bytes(PROGRESS_BYTES)])
def test_a_replica_without_progress_is_no_state(intact, arena, progress):
    intact.end_change(1, 9, b"progress")
    intact.begin_change(1)
    intact.end_change(1, 10, progress)
    assert intact.is_intact(1, 10)
    assert arena.intact_step(1) is None


class Device:
    """A worker whose replica is on a device, and the one that may take its place."""

    def __init__(self, arena, rank):
        layout = MappedLayout(replica_bytes=64, share_bytes=0, slot_bytes=64, num_slots=0)
        self.rank = rank
        self._arena = arena
        self._mapped = MappedMemory(torch.device("cpu"), layout)
        self.replacement = MappedMemory(torch.device("cpu"), layout)
        self.replacement.open(rank, os.dup(self._mapped.fd))
        self.intact = IntactReplicas(arena, progresses(), self._mapped)

    def update(self, step, progress):
        self.intact.begin_change(self.rank)
        self._mapped.replica.fill_(step)
        self.intact.end_change(self.rank, step, progress)

    @property
    def left(self):
        """The step and the progress that it leaves; None if that is no state."""
        left = self.replacement.left_by(self.rank)
        if left is None or not has_progress(self._arena, self.rank, left):
            return None
        return left.step, self.intact.progress(self.rank, left.change)

    def lags(self):
        """Give the device the marks of the change before, as if it had not done the last one."""
        marks = self._mapped._marks
        marks -= 1

    def close(self):
        os.close(self._mapped.fd)
        os.close(self.replacement.fd)


@pytest.fixture
def device(arena):
    made = Device(arena, 1)
    yield made
    made.close()


def test_a_device_leaves_the_state_of_the_change_that_it_has_completed(device, arena):
    assert device.left is None
    for step in range(1, 9):
        device.update(step, b"step %d" % step)
        assert device.left == (step, b"step %d" % step)
    device.lags()
    assert device.left == (7, b"step 7")
    device.lags()
    assert device.left == (6, b"step 6")
    assert arena.intact_step(1) is None, "the arena has no replica"
    arena.forget_replicas()
    assert device.left is None


def test_a_device_leaves_no_state_in_an_update_or_without_its_progress(device):
    device.update(1, b"one")
    device.intact.begin_change(1)
    device.intact.begin_change(1)  # of the same change
    assert device.left is None
    device.intact.end_change(1, 2, b"two")
    assert device.left == (2, b"two")
    device.update(3, b"")  # another worker has the state, too
    assert device.left is None
    device.update(4, b"four")
    assert device.left == (4, b"four")
    device.lags()
    assert device.left is None, "the progress of the change before was not kept"


def test_a_replica_that_changes_while_it_is_copied_is_not_taken_over(device):
    device.update(1, b"one")
    left = device.replacement.left_by(1)
    assert device.replacement.take_over(1, left)
    assert device.replacement.replica.tolist() == [1] * 64
    device.update(2, b"two")  # what the device still does for a worker that is lost
    assert not device.replacement.take_over(1, left)
