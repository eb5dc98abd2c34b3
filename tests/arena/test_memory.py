"""Workers meet in the arena, and an abort or a deadline ends every wait."""

import os
import resource
import threading
from pathlib import Path

import pytest

from holdfast.arena.memory import Arena, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import ReduceTag, WorkerTag, describe
from holdfast.collectives.group import Group
from holdfast.errors import Aborted, HoldfastError, JobError


@pytest.fixture
def arena():
    made = Arena.create(3)
    yield made
    made.close()


def in_threads(arena, act):
    """Run `act(group)` for every rank at once; returns results or exceptions by rank."""
    found = [None] * arena.world_size

    def run(rank):
        try:
            found[rank] = act(Group(arena, rank, 20, describe))
        except HoldfastError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(arena.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_barrier_returns_the_values_of_all_members(arena):
    def act(group):
        return [
            group.barrier(ReduceTag.PARTIALS, step, 100 * step + group.rank) for step in range(200)
        ]

    expected = [tuple(100 * step + rank for rank in range(3)) for step in range(200)]
    assert in_threads(arena, act) == [expected] * 3


def test_a_gather_returns_the_payloads_of_all_members(arena):
    def payload(step, rank):
        return bytes([step % 256, rank]) * (rank + step)

    def act(group):
        found = []
        for step in range(200):
            found.append(group.gather(ReduceTag.TABLES, step, payload(step, group.rank)))
            for _ in range(step % 3):
                group.barrier(ReduceTag.PARTIALS, step)
        return found

    expected = [tuple(payload(step, rank) for rank in range(3)) for step in range(200)]
    assert in_threads(arena, act) == [expected] * 3


def test_workers_at_different_barriers_get_an_error_that_names_both(arena):
    def act(group):
        group.barrier(WorkerTag.END if group.rank == 1 else ReduceTag.PARTIALS, 7)

    for error in in_threads(arena, act):
        assert isinstance(error, JobError)
        assert "ranks 0, 2 are summing the gradient of step 8" in str(error)
        assert "rank 1 is at the end of the training function" in str(error)


def test_a_new_generation_aborts_an_incomplete_barrier(arena):
    waiting = threading.Event()

    def act(group):
        if group.rank == 2:
            waiting.wait(20)
            arena.announce(1)
            return None
        waiting.set()
        return group.barrier(ReduceTag.PARTIALS, 0)

    first, second, _ = in_threads(arena, act)
    assert isinstance(first, Aborted)
    assert isinstance(second, Aborted)


def test_a_wait_times_out_with_an_error_that_names_the_rank(arena):
    with pytest.raises(HoldfastError, match=r"rank 0 waited 0 s for rank 1, .* 'starting'"):
        Group(arena, 0, 0.01, describe).barrier(ReduceTag.PARTIALS, 0)


def test_other_processes_see_the_same_words_and_sections(arena):
    sections = arena.map_sections(1 << 20)
    pid = os.fork()
    if pid == 0:
        other = Arena(arena.fd)
        other[1, Word.COMMITTED] = 42
        WorkerStatus(other, 1).loss = 0.5
        other.map_sections(1 << 20)[100] = 7
        os._exit(0)
    os.waitpid(pid, 0)
    assert arena[1, Word.COMMITTED] == 42
    assert WorkerStatus(arena, 1).loss == 0.5
    assert sections[100] == 7


def test_an_arena_has_no_name_in_any_file_system(arena):
    link = Path(f"/proc/self/fd/{arena.fd}").readlink()
    assert str(link) == "/memfd:holdfast-arena (deleted)"


def test_a_limit_of_file_sizes_is_named():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(HoldfastError, match="ulimit -f"):
            Arena.create(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
