"""On which host each rank runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.actions import GenerationOpened
from holdfast.core.membership import Membership, place
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Eviction, Failure, Status


def test_neighbours_share_a_host() -> None:
    assert place(range(4), {"b": 2, "a": 2}, {}) == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_lost_rank_returns_to_a_host_in_use() -> None:
    capacity = {"a": 2, "b": 2, "c": 2}
    assert place(range(4), capacity, {0: "b", 1: "b", 2: "c"}) == {0: "b", 1: "b", 2: "c", 3: "c"}


def test_hosts_with_more_capacity_than_is_needed_get_equal_shares() -> None:
    assert place(range(3), {"a": 3, "b": 3, "c": 3}, {}) == {0: "a", 1: "b", 2: "c"}
    grown = place(range(5), {"a": 3, "b": 1, "c": 3}, {0: "a", 1: "b", 2: "c"})
    assert grown == {0: "a", 1: "b", 2: "c", 3: "a", 4: "c"}


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


def slow(rank: int) -> Eviction:
    return Eviction(rank=rank, reason="compute", step=5, threshold_s=0.2, step_s=1.0)


def membership(min_workers: int, capacity: int = 4, **more: Any) -> Membership:
    """Four members on one host."""
    policy = RecoveryPolicy(world_size=4, min_workers=min_workers, **more)
    newest = GenerationOpened(1, dict.fromkeys(range(4), "a"))
    members = Membership(policy, newest, now=0.0)
    members.join(Status(host="a", number=0, capacity=capacity))
    return members


def change(members: Membership, **fields: Any) -> bool:
    return members.change_standbys(Status(host="a", number=1, capacity=4, **fields))


def test_a_slow_worker_goes_to_standby_though_each_worker_is_needed() -> None:
    members = membership(min_workers=4)
    assert change(members, eviction=slow(1))
    assert not members.lacks_workers
    members.reassign_ranks(1.0, restart_all=False)
    assert list(members.members) == [0, 2, 3]
    assert members.standbys_of("a") == {1: slow(1)}
    assert not members.is_resize_due(1.0), "its rank is not given to another worker"
    assert not change(members, eviction=slow(1)), "the same report again"


def elastic(capacity: int = 3) -> Membership:
    """Two hosts, each with an equal share of two workers, and capacity for more."""
    policy = RecoveryPolicy(world_size=6, min_workers=1, workers=2, host_share=1, start_workers=2)
    members = Membership(policy, GenerationOpened(0, {}), now=0.0)
    members.join(Status(host="a", number=0, capacity=capacity))
    assert not members.is_resize_due(1.0), "the run begins with two workers"
    members.join(Status(host="b", number=0, capacity=capacity))
    assert members.is_resize_due(1.0)
    members.reassign_ranks(1.0, restart_all=False)
    members.on_resumed()
    assert members.by_host == {"a": (0,), "b": (1,)}
    return members


def test_a_run_that_is_scaled_has_so_many_workers_and_each_rank_stays() -> None:
    members = elastic()
    members.scale(5)
    assert members.is_resize_due(2.0)
    members.reassign_ranks(2.0, restart_all=False)
    assert members.members == {0: "a", 1: "b", 2: "a", 3: "a", 4: "b"}
    members.scale(1)
    assert members.is_resize_due(3.0)
    assert members.reassign_ranks(3.0, restart_all=False) == ["b"]
    assert members.members == {0: "a"}
    assert not members.lacks_workers
    members.scale(2)
    assert members.is_resize_due(4.0)
    members.reassign_ranks(4.0, restart_all=False)
    assert members.members == {0: "a", 1: "b"}, "each host has its share again"


def test_a_size_that_hosts_have_no_capacity_for_is_refused() -> None:
    members = elastic(capacity=2)
    assert not members.refuses_size(4)
    assert members.refuses_size(5) == "its hosts can run 4; let another host join"
    assert "max_workers" in members.refuses_size(7)


def test_a_world_is_full_without_its_standbys_and_not_with_ranks_beyond_it() -> None:
    members = membership(min_workers=4)
    assert members.is_full
    change(members, eviction=slow(1))
    assert members.is_full
    members.remove({3: None})
    assert not members.is_full
    members.scale(2)
    assert not members.is_full, "rank 2 is still there"
    members.reassign_ranks(1.0, restart_all=False)
    assert members.is_full


def test_ranks_of_process_groups_have_no_gaps_after_a_host_is_lost() -> None:
    policy = RecoveryPolicy(world_size=6, min_workers=4, restart_all=True)
    before = GenerationOpened(1, {rank: "abc"[rank // 2] for rank in range(6)})
    members = Membership(policy, before, now=0.0)
    for host in "abc":
        members.join(Status(host=host, number=0, capacity=2))
    members.fence(["a"])
    members.reassign_ranks(1.0, restart_all=True)
    assert members.members == {0: "c", 1: "c", 2: "b", 3: "b"}
    assert not members.lacks_workers


def test_the_last_member_stays() -> None:
    members = membership(min_workers=1)
    assert [change(members, eviction=slow(rank)) for rank in range(4)] == [True, True, True, False]
    assert list(members.members) == [3]


def test_a_worker_returns_once_it_is_fit() -> None:
    members = membership(min_workers=4)
    change(members, eviction=slow(1))
    assert change(members, fit=frozenset({1}))
    assert list(members.members) == [0, 1, 2, 3]
    assert not change(members, fit=frozenset({1}))


def test_where_all_restart_all_are_members() -> None:
    members = membership(min_workers=4)
    change(members, eviction=slow(1))
    members.reassign_ranks(1.0, restart_all=True)
    assert list(members.members) == [0, 1, 2, 3]
    assert not change(membership(min_workers=4, restart_all=True), eviction=slow(1))


def capped(members: Membership, *ranks: int, shards: int) -> None:
    failed = {rank: Failure(cause="has no memory", cap=shards) for rank in ranks}
    assert members.change_caps(Status(host="a", number=1, capacity=4, failed=failed))
    members.remove(failed)
    members.reassign_ranks(1.0, restart_all=False)


def test_a_rank_without_memory_for_a_shard_is_not_waited_for_and_uses_capacity() -> None:
    members = membership(min_workers=4, num_shards=8)
    capped(members, 1, shards=0)
    assert list(members.members) == [0, 2, 3]
    assert not members.lacks_workers
    assert not members.is_resize_due(1.0), "its rank is not given to another worker"
    members.reassign_ranks(2.0, restart_all=True)
    assert list(members.members) == [0, 2, 3]


def test_members_with_too_little_memory_together_wait_for_one_that_is_absent() -> None:
    members = membership(min_workers=1, num_shards=8)
    capped(members, 0, 1, 2, shards=2)
    assert list(members.members) == [0, 1, 2, 3]
    assert members.most_shards == {0: 2, 1: 2, 2: 2}
    assert not change(members, eviction=slow(3)), "the others lack the memory"
    members.remove({3: None})
    assert members.lacks_workers
    assert members.can_compute
    assert members.missing() == "1 more worker (3 of 4 joined)"
    members.reassign_ranks(2.0, restart_all=False)
    assert not members.lacks_workers
    capped(members, 3, shards=1)
    assert not members.can_compute
