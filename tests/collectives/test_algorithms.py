"""Every algorithm adds the vectors of all members, and leaves the same bits with each of them."""

import threading

import pytest
import torch

from collective_hosts import Hosts, links_of
from holdfast.collectives.algorithms.choice import ALGORITHMS
from holdfast.coordinator.authority import Authority
from holdfast.errors import HoldfastError
from holdfast.wire.tls import Role

SIZES = (0, 1, 2, 7, 97, 1009)
LARGE = 140_003  # several blocks of shared memory
LONG = 800_009  # several pieces of a message between hosts
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-15, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def input_of(rank, size, dtype):
    drawn = torch.Generator().manual_seed(1000 * size + rank)
    return torch.randn(size, generator=drawn, dtype=torch.float64).to(dtype)


def check_sums(ranks, cases, credentials=None):
    """Reduce every case, `(algorithm, size, dtype)`, and compare with a sum in float64.

    Args:
        ranks: The ranks of each host; members are threads.
        cases: What to reduce, one after the other.
        credentials: Certificate of the workers; None for connections in plain.
    """
    with Hosts(ranks, credentials) as hosts:
        members = range(hosts.num_members)
        vectors = {(rank, case): input_of(rank, *case[1:]) for rank in members for case in cases}
        errors = []

        def work(rank):
            try:
                with hosts.member(rank) as group:
                    for case in cases:
                        local = {each: vectors[each, case] for each in group.local}
                        links = links_of(group, local)
                        ALGORITHMS[case[0]](links, members, range(case[1]))
                        links.finish()
            except HoldfastError as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in members]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not errors
    for case in cases:
        inputs = torch.stack([input_of(rank, *case[1:]).double() for rank in members])
        first, *others = [vectors[rank, case] for rank in members]
        assert all(torch.equal(each, first) for each in others), case
        # A sum of n terms is rounded n - 1 times at most.
        limit = len(members) * TOLERANCE[case[2]] * inputs.abs().sum(0)
        assert (first.double() - inputs.sum(0)).abs().le(limit).all(), case


def cases_of(dtypes, sizes):
    return [(name, size, dtype) for name in ALGORITHMS for size in sizes for dtype in dtypes]


@pytest.mark.parametrize("size", range(1, 9))
def test_members_of_one_host_get_the_sum(size):
    check_sums([range(size)], cases_of(DTYPES, SIZES))


def test_a_vector_of_several_blocks_is_added_whole():
    check_sums([range(3)], cases_of([torch.float32], [LARGE]))


@pytest.mark.parametrize(
    "hosts",
    [
        [[0], [1]],
        [[0, 1], [2, 3]],
        [[0, 1, 2], [3], [4, 5]],
        [[0, 2, 4], [1, 3, 5, 6]],
    ],
    ids=str,
)
def test_members_of_several_hosts_get_the_sum(hosts):
    check_sums(hosts, cases_of([torch.float32], [1, 97, LARGE]))


@pytest.mark.slow
def test_messages_of_several_pieces_are_added_whole():
    check_sums([[0], [1], [2]], cases_of([torch.float32], [LONG]))


@pytest.mark.full
@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["tcp", "tls"])
def test_members_of_hosts_of_one_get_the_sum(size, is_encrypted, tmp_path):
    authority = Authority.create(tmp_path)
    credentials = authority.issue("host", Role.DATA) if is_encrypted else None
    check_sums([[rank] for rank in range(size)], cases_of(DTYPES, SIZES), credentials)


@pytest.mark.full
@pytest.mark.parametrize("size", range(3, 9))
def test_members_of_two_hosts_get_the_sum(size):
    check_sums([range(0, size, 2), range(1, size, 2)], cases_of(DTYPES, SIZES))
