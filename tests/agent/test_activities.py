"""What each worker does, and which it waits for, as its agent reads it from the arena."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import wait_until
from holdfast.agent.worker_log import Activity, activities, longest_wait_s
from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import ReduceTag, WorkerTag, describe
from holdfast.collectives.group import Group
from holdfast.errors import Aborted

MEMBERS = (0, 1, 2)


@pytest.fixture
def arena():
    return Arena.create(len(MEMBERS))


def status_of(arena, rank, phase, committed=0):
    status = WorkerStatus(arena, rank)
    status.claim()
    status[Word.COMMITTED] = committed
    status.enter(phase)
    return status


def doing(arena, local=MEMBERS, *, is_script=False):
    return activities(arena, local, MEMBERS, is_script=is_script)


def test_a_worker_that_computes_is_in_its_phase(arena):
    status_of(arena, 0, Phase.FORWARD, 40)
    status_of(arena, 1, Phase.CHECKPOINT, 40)
    status_of(arena, 2, Phase.WAIT)  # for its agent: it has met nobody yet
    assert doing(arena) == [
        Activity(rank=0, doing="running the task's code in step 41"),
        Activity(rank=1, doing="saving the checkpoint of step 40"),
        Activity(rank=2, doing="waiting to resume"),
    ]
    assert doing(arena, [0], is_script=True) == [Activity(rank=0, doing="running the script")]


def test_a_worker_that_waits_names_the_barrier_and_who_is_late(arena):
    arena.announce(1)
    groups = [Group(Arena(arena.fd), rank, 60.0, describe) for rank in MEMBERS]
    for rank, group in enumerate(groups):
        status_of(arena, rank, Phase.COLLECT, 40)
        group.enter(1, MEMBERS)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(groups[rank].barrier, ReduceTag.PARTIALS, 40) for rank in (0, 1)]
        wait_until(lambda: [arena[rank, Word.PHASE] for rank in (0, 1)] == [Phase.WAIT] * 2)
        late = {"doing": "summing the gradient of step 41", "waits_for": (2,)}
        assert doing(arena) == [
            Activity(rank=0, **late),
            Activity(rank=1, **late),
            Activity(rank=2, doing="collecting its gradients of step 41"),
        ]
        assert doing(arena, [0, 1])[0] == Activity(rank=0, **late), "it is on another host"
        assert 0 < longest_wait_s(arena, [0, 2]) <= longest_wait_s(arena, MEMBERS)
        assert longest_wait_s(arena, [2]) == 0
        arena.announce(2)
        for wait in waits:
            with pytest.raises(Aborted):
                wait.result(60)


def test_a_worker_that_was_stopped_in_a_wait_that_is_over_waits_for_nobody(arena):
    arena.announce(1)
    for rank in MEMBERS:
        arena.enter_generation(rank, 1)
    status_of(arena, 1, Phase.WAIT, 40)
    arena[1, Word.TAG_ODD] = WorkerTag.COMMIT * (1 << 48) + 40
    for rank in MEMBERS:
        arena.arrive(rank)
    assert doing(arena)[1] == Activity(rank=1, doing="committing step 41")
    WorkerStatus(arena, 1).enter(Phase.WAIT_REDUCE)  # of DistributedDataParallel, or TCP
    assert doing(arena)[1] == Activity(rank=1, doing="waiting for gradients of step 41")
