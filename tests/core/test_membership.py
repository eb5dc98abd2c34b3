"""On which host each rank runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.actions import GenerationOpened
from holdfast.core.membership import Membership, in_words, place
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Cap, Eviction, Failure, Standby, Status


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
    assert not members.is_resize_due(99.0), "nor later"
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
    assert members.refuses_size(4) == ""
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


def test_a_status_that_comes_late_is_not_recorded_and_a_repeated_one_is() -> None:
    members = membership(min_workers=4)
    assert members.join(Status(host="a", number=5, capacity=2))
    assert not members.join(Status(host="a", number=4, capacity=4))
    assert members.join(Status(host="a", number=5, capacity=3))
    assert members.statuses["a"].capacity == 3
    members.check_invariants(is_known=True)


def test_a_host_that_took_part_and_is_no_member_is_fenced() -> None:
    standbys = {1: Standby(host="b", eviction=slow(1))}
    caps = {2: Cap(host="c", shards=0), 0: Cap(host="d", shards=2)}
    newest = GenerationOpened(4, {0: "a"}, standbys=standbys, caps=caps)
    members = Membership(RecoveryPolicy(world_size=3, min_workers=1), newest, now=0.0)

    def is_fenced(host: str, generation: int) -> bool:
        return members.is_fenced(Status(host=host, number=0, generation=generation))

    assert [host for host in "abcde" if is_fenced(host, 4)] == ["d", "e"]
    assert is_fenced("e", 1)
    assert not is_fenced("e", 0)
    members.join(Status(host="e", number=0))
    assert not is_fenced("e", 4)
    assert members.fence(["b"])
    assert not members.fence(["e", "x"])
    assert [is_fenced(host, 0) for host in "abex"] == [False, True, True, True]


def test_a_host_has_the_ranks_of_its_members_and_those_on_standby() -> None:
    standbys = {1: Standby(host="b", eviction=slow(1))}
    newest = GenerationOpened(4, {0: "a"}, standbys=standbys)
    members = Membership(RecoveryPolicy(world_size=2, min_workers=1), newest, now=0.0)
    assert [host for host in "abc" if members.has_ranks(host)] == ["a", "b"]
    assert list(members.hosts) == ["a", "b"]


def test_capacity_that_joins_waits_for_a_last_call_and_what_makes_it_full_does_not() -> None:
    policy = RecoveryPolicy(world_size=3, min_workers=1, last_call_s=0.5)
    members = Membership(policy, GenerationOpened(0, {}), now=0.0)
    members.join(Status(host="a", number=0, capacity=1))
    assert not members.is_resize_due(1.0)
    assert members.next_deadline() == 1.5
    assert not members.is_resize_due(1.4)
    assert members.is_resize_due(1.5)
    members.join(Status(host="b", number=0, capacity=1))
    members.reassign_ranks(1.5, restart_all=False)
    assert members.members == {0: "a", 1: "b"}
    assert not members.is_resize_due(1.5)
    assert members.next_deadline() is None
    members.join(Status(host="c", number=0, capacity=1))
    assert members.is_resize_due(1.6), "with it the world is full"


def test_a_world_that_lost_workers_grows_after_a_delay_if_the_others_are_enough() -> None:
    def grown(min_workers: int) -> Membership:
        members = membership(min_workers, regrow_delay_s=9.0)
        members.remove({3: None})
        members.delay_growth(1.0)
        members.reassign_ranks(1.0, restart_all=False)
        return members

    members = grown(min_workers=3)
    assert list(members.members) == [0, 1, 2]
    assert not members.is_resize_due(2.0)
    assert members.next_deadline() == 10.0
    assert members.is_resize_due(10.0)
    members.reassign_ranks(10.0, restart_all=False)
    assert list(members.members) == [0, 1, 2, 3]
    assert list(grown(min_workers=4).members) == [0, 1, 2, 3], "three are too few"


def test_a_run_ends_where_too_few_workers_join_in_time() -> None:
    policy = RecoveryPolicy(world_size=3, min_workers=2, join_timeout_s=60.0)
    members = Membership(policy, GenerationOpened(0, {}), now=1.0)
    assert members.next_deadline() == 61.0
    assert members.join_timeout(60.9) == ""
    assert members.join_timeout(61.0) == "only 0 of 2 required workers joined within 60 s"
    for host in "ab":
        members.join(Status(host=host, number=0, capacity=1))
    members.reassign_ranks(20.0, restart_all=False)
    assert members.join_timeout(99.0) == ""
    assert members.next_deadline() is None
    members.fence(["b"])
    members.reassign_ranks(30.0, restart_all=False)
    assert members.missing() == "1 more worker (1 of 2 joined)"
    assert members.join_timeout(89.9) == ""
    assert members.join_timeout(90.0) == "only 1 of 2 required workers joined within 60 s"
    members.on_recovered()
    assert members.join_timeout(99.0) == ""


def test_a_run_ends_where_its_workers_have_too_little_memory_and_none_joins() -> None:
    policy = RecoveryPolicy(world_size=2, min_workers=1, num_shards=8, join_timeout_s=60.0)
    caps = {0: Cap(host="a", shards=7)}
    members = Membership(policy, GenerationOpened(1, {0: "a"}, caps=caps), now=0.0)
    assert members.lacks_workers
    assert members.missing() == "1 more worker (1 of 2 joined)"
    assert members.join_timeout(60.0) == (
        "the workers have too little memory for all shards, and no other one joined within 60 s"
    )
    caps = {0: Cap(host="a", shards=8)}
    assert not Membership(policy, GenerationOpened(1, {0: "a"}, caps=caps), 0.0).lacks_workers


def test_a_run_begins_with_more_workers_than_it_needs_later() -> None:
    policy = RecoveryPolicy(world_size=4, min_workers=1, start_workers=3)
    members = Membership(policy, GenerationOpened(0, {}), now=0.0)
    members.join(Status(host="a", number=0, capacity=2))
    assert members.missing() == "3 more workers (0 of 3 joined)"
    assert not members.is_resize_due(9.0)
    members.on_resumed()
    assert members.missing() == "1 more worker (0 of 1 joined)"


def test_members_are_unlike_where_a_fact_of_the_first_differs() -> None:
    newest = GenerationOpened(1, {0: "a", 1: "b", 2: "c"})
    facts = {"a": {"torch": "2.1", "cpu": "x"}, "b": {"torch": "2.2"}, "c": {"torch": "2.1"}}

    def unlike(**more: Any) -> dict[str, str]:
        members = Membership(RecoveryPolicy(world_size=3, min_workers=3, **more), newest, 0.0)
        for host, numerics in facts.items():
            state = {2: 5} if host == "c" else {}
            members.join(Status(host=host, number=0, numerics=numerics, committed=state))
        members.join(Status(host="d", number=0, numerics={"torch": "9"}))
        return members.unlike()

    assert unlike() == {"b": "its torch is 2.2, but 2.1 on c"}
    assert unlike(allows_unlike_hosts=True) == {}
    facts["c"] = {"torch": "2.1", "cpu": "x"}
    assert unlike() == {"b": "its torch is 2.2, but 2.1, cpu is unknown, but x on c"}


def test_addresses_are_those_of_hosts_of_the_generation() -> None:
    newest = GenerationOpened(1, {0: "b", 1: "a", 2: "c"})
    members = Membership(RecoveryPolicy(world_size=3, min_workers=3), newest, now=0.0)
    for rank, host in ((1, "a"), (0, "b"), (3, "d")):
        members.join(Status(host=host, number=0, addresses={rank: f"{host}:1"}))
    assert [status.host for status in members.of_generation] == ["b", "a"]
    assert members.addresses == {0: "b:1", 1: "a:1"}


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ({}, ""),
        ({"a": (0,)}, "rank 0 on a"),
        ({"a": (0, 1), "b": (2,)}, "ranks 0, 1 on a and rank 2 on b"),
        (dict.fromkeys("abc", (0,)), "rank 0 on a and rank 0 on b and rank 0 on c"),
        (
            dict.fromkeys("abcde", (0,)),
            "rank 0 on a and rank 0 on b and rank 0 on c and 2 more hosts",
        ),
    ],
)
def test_ranks_in_words_name_three_hosts(hosts: dict[str, tuple[int, ...]], words: str) -> None:
    assert in_words(hosts) == words
