"""On which host each rank runs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.membership import place


def test_neighbours_share_a_host() -> None:
    assert place(range(4), {"b": 2, "a": 2}, {}) == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_lost_rank_returns_to_a_host_in_use() -> None:
    assert place(range(2), {"a": 2, "b": 2}, {0: "b"}) == {0: "b", 1: "b"}


def test_without_room_some_ranks_have_no_host() -> None:
    assert place(range(4), {"a": 1, "b": 1}, {3: "b"}) == {0: "a", 3: "b"}


hosts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 4))


@given(st.integers(1, 12), hosts, hosts)
def test_no_host_gets_more_than_it_has_room_for_and_nobody_moves_without_need(
    world_size: int, before: dict[str, int], after: dict[str, int]
) -> None:
    first = place(range(world_size), before, {})
    placed = place(range(world_size), after, first)
    load = Counter(placed.values())
    assert all(load[host] <= after[host] for host in load)
    assert len(placed) == min(world_size, sum(after.values()))
    for host, room in after.items():
        stayed = [rank for rank in first if first[rank] == host and placed.get(rank) == host]
        assert len(stayed) == min(room, sum(here == host for here in first.values()))
