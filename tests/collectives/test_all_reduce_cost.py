"""The predicted cost of an all-reduce is that of its rounds, as the module of each one says."""

import math

import pytest

from holdfast.collectives.algorithms.choice import ALGORITHMS
from holdfast.collectives.algorithms.cost import Fabric, LinkSpeed, cost, tree_cost

NEAR = LinkSpeed(latency_s=1e-5, byte_s=1e-10)
FAR = LinkSpeed(latency_s=1e-4, byte_s=1e-8)
SIZE = 1 << 20


def fabric_of(*sizes):
    """Hosts with so many members each."""
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    hosts = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return Fabric(hosts=hosts, near=NEAR, far=FAR)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_between_hosts_of_one_the_cost_is_the_formula(size):
    moved = 2 * (size - 1) / size * SIZE * FAR.byte_s
    rounds = {
        "ring": 2 * (size - 1),
        "halving": 2 * math.log2(size),
        "hierarchical": 2 * (size - 1),
        "parameter-server": 2 * (size - 1),
    }
    for name, number in rounds.items():
        expected = number * FAR.latency_s + moved
        assert cost(ALGORITHMS[name], SIZE, fabric_of(*[1] * size)) == pytest.approx(expected)


def test_a_fold_costs_two_rounds_with_the_whole_vector():
    folded, even = (cost(ALGORITHMS["halving"], SIZE, fabric_of(*[1] * n)) for n in (5, 4))
    assert folded - even == pytest.approx(2 * (FAR.latency_s + SIZE * FAR.byte_s))


def test_on_one_host_a_parameter_server_waits_twice():
    expected = 2 * NEAR.latency_s + 2 * 3 / 4 * SIZE * NEAR.byte_s
    for name in ("parameter-server", "hierarchical"):
        assert cost(ALGORITHMS[name], SIZE, fabric_of(4)) == pytest.approx(expected)


def test_a_hierarchy_moves_only_sums_of_hosts_between_them():
    within = 2 * NEAR.latency_s + 2 * 1 / 2 * SIZE * NEAR.byte_s
    between = 2 * 2 * FAR.latency_s + 2 * 2 / 3 * SIZE * FAR.byte_s
    found = {name: cost(each, SIZE, fabric_of(2, 2, 2)) for name, each in ALGORITHMS.items()}
    assert found["hierarchical"] == pytest.approx(within + between, rel=1e-4)
    assert min(found, key=found.get) == "hierarchical"


def test_the_tree_costs_more_where_hosts_pass_on_several_sums():
    fabric = fabric_of(1, 1)
    one, two = (tree_cost(SIZE, fabric, most_sums) for most_sums in (1, 2))
    assert one == pytest.approx(
        2 * NEAR.latency_s + 2 * FAR.latency_s + 2 * 1 / 2 * SIZE * FAR.byte_s
    )
    assert two - one == pytest.approx(1 / 2 * SIZE * FAR.byte_s)


def test_short_vectors_are_halved_and_long_ones_are_not_folded():
    fabric = fabric_of(*[1] * 6)
    short, long = (
        min(ALGORITHMS, key=lambda name, size=size: cost(ALGORITHMS[name], size, fabric))
        for size in (1 << 10, 100 << 20)
    )
    assert (short, long) == ("halving", "ring")
