"""Which replicas are complete, of which step, and what lost workers have left with them."""

import pytest
import torch

from holdfast.arena.intact_replicas import PROGRESS_BYTES, IntactReplicas
from holdfast.arena.memory import Arena


@pytest.fixture
def arena():
    made = Arena.create(3)
    yield made
    made.close()


@pytest.fixture
def intact(arena):
    return IntactReplicas(arena, torch.zeros((3, PROGRESS_BYTES), dtype=torch.uint8))


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
