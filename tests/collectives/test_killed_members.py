"""A member that is killed in any round of an all-reduce ends the wait of all others."""

import mmap
import multiprocessing
import os
import signal

import pytest
import torch

from collective_hosts import Hosts, links_of
from conftest import sampled
from holdfast.collectives.algorithms.choice import ALGORITHMS
from holdfast.errors import HoldfastError

RANKS = [[0, 1], [2, 3]]
MEMBERS = range(4)
SIZE = 200_000
ROUNDS = {"ring": 6, "halving": 4, "hierarchical": 4, "parameter-server": 2}
FORK = multiprocessing.get_context("fork")


class DyingLinks:
    """The links of a member that kills itself before one of its rounds."""

    def __init__(self, links, last_round):
        self._links = links
        self._left = last_round
        self.member, self.hosts = links.member, links.hosts

    def exchange(self, sends, receives, *, add):
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        self._links.exchange(sends, receives, add=add)

    def finish(self):
        self._links.finish()


def work(hosts, memories, rank, name, dies_in, result):
    torch.set_num_threads(1)
    with hosts.member(rank) as group:
        memory = memories[next(at for at, ranks in enumerate(RANKS) if rank in ranks)]
        vectors = torch.frombuffer(memory, dtype=torch.float32).chunk(len(MEMBERS))
        links = links_of(group, {each: vectors[each] for each in group.local})
        if dies_in is not None:
            links = DyingLinks(links, dies_in)
        try:
            while True:
                ALGORITHMS[name](links, MEMBERS, range(SIZE))
                links.finish()
        except HoldfastError as error:
            result.put((rank, type(error).__name__))


def end_of_others(name, victim, dies_in):
    """The error that each other member raises once the generation is over, by rank."""
    with Hosts(RANKS) as hosts:
        memories = [mmap.mmap(-1, 4 * SIZE * len(MEMBERS)) for _ in RANKS]
        result = FORK.SimpleQueue()
        processes = [
            FORK.Process(
                target=work,
                args=(hosts, memories, rank, name, dies_in if rank == victim else None, result),
            )
            for rank in MEMBERS
        ]
        for each in processes:
            each.start()
        processes[victim].join()
        for arena in hosts.arenas:  # as agents do, which see the exit of a worker
            arena.announce(2)
        found = dict(result.get() for _ in MEMBERS[1:])
        for each in processes:
            each.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(ALGORITHMS, 1))
def test_a_member_that_is_killed_in_any_round_ends_the_wait_of_all_others(name):
    for dies_in in range(ROUNDS[name] + 1):  # the last one is the first round of the next vector
        victim = MEMBERS[dies_in % len(MEMBERS)]
        others = dict.fromkeys({*MEMBERS} - {victim}, "Aborted")
        assert end_of_others(name, victim, dies_in) == others
