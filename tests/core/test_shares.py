"""Shares of runs that claim one after the other never overlap, and nothing is refused that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.placement.shares import (
    Claim,
    Needs,
    Share,
    Slots,
    Supply,
    divide,
    shortages,
)

GIB = 1 << 30


@st.composite
def supplies(draw):
    cpus = tuple(sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=12))))
    memory = draw(st.integers(1, 64)) * GIB
    return Supply(
        cpus=cpus,
        max_cpus=draw(st.integers(1, len(cpus))),
        gpus=tuple(map(str, range(draw(st.integers(0, 6))))),
        memory_bytes=memory,
        available_bytes=draw(st.integers(0, memory)),
    )


needs = st.builds(
    Needs,
    workers=st.integers(1, 4),
    cpus=st.integers(1, 4),
    gpus=st.integers(0, 2),
    memory_bytes=st.integers(0, 8).map(lambda gib: gib * GIB),
)


def claim_of(each, shares, pid):
    return Claim(
        run=f"run-{pid}",
        pid=pid,
        ticket=0,
        cpus=tuple(cpu for share in shares for cpu in share.cpus),
        gpus=tuple(gpu for share in shares for gpu in share.gpus),
        memory_bytes=each.workers * each.memory_bytes,
    )


@given(supplies(), st.lists(needs, max_size=6))
def test_runs_that_fit_share_nothing_and_never_exceed_the_host(supply, runs):
    claims = []
    for pid, each in enumerate(runs):
        if shortages(each, supply, claims):
            continue
        shares = divide(each, supply, claims)
        assert [len(share.cpus) for share in shares] == [each.cpus] * each.workers
        assert [len(share.gpus) for share in shares] == [each.gpus] * each.workers
        claims.append(claim_of(each, shares, pid))
    cpus = [cpu for claim in claims for cpu in claim.cpus]
    gpus = [gpu for claim in claims for gpu in claim.gpus]
    assert len(cpus) == len({*cpus}) <= supply.max_cpus
    assert {*cpus} <= {*supply.cpus}
    assert len(gpus) == len({*gpus})
    assert sum(claim.memory_bytes for claim in claims) <= supply.memory_bytes


@given(supplies(), needs)
def test_a_run_alone_lacks_only_what_the_host_never_has_or_others_use_without_a_claim(supply, need):
    lacking = shortages(need, supply, ())
    assert {each.what for each in lacking if each.is_final} == {
        what
        for what, asked, there in [
            ("CPUs", need.workers * need.cpus, supply.max_cpus),
            ("GPUs", need.workers * need.gpus, len(supply.gpus)),
            ("memory", need.workers * need.memory_bytes, supply.memory_bytes),
        ]
        if asked > there
    }
    assert {each.what for each in lacking if not each.is_final} <= {"memory"}


@given(supplies(), needs, needs)
def test_a_run_that_is_never_refused_takes_free_cpus_first(supply, first, second):
    before = claim_of(first, divide(first, supply, ()), 1)
    after = claim_of(second, divide(second, supply, [before]), 2)
    free = {*supply.cpus} - {*before.cpus}
    assert len({*after.cpus} & free) == min(len(free), second.workers * second.cpus)
    assert len({*after.cpus}) == len(after.cpus)


def test_a_shortage_names_those_that_have_it():
    supply = Supply(cpus=(2, 3, 5), max_cpus=3, gpus=("0",), memory_bytes=9, available_bytes=9)
    claims = [
        Claim(run="a", pid=1, ticket=0, cpus=(2,), gpus=(), memory_bytes=0),
        Claim(run="b", pid=2, ticket=0, cpus=(7, 8), gpus=("0",), memory_bytes=4),
    ]
    lacking = shortages(Needs(workers=1, cpus=3, gpus=1, memory_bytes=6), supply, claims)
    held = [(each.what, each.free, each.total, each.held) for each in lacking]
    assert held == [
        ("CPUs", 2, 3, ((claims[0], 1),)),  # the others of b are not this process's
        ("GPUs", 0, 1, ((claims[1], 1),)),
        ("memory", 5, 9, ((claims[1], 4),)),
    ]


def test_a_rank_keeps_its_slot_and_a_new_one_gets_the_lowest_free():
    slots = Slots()
    assert [slots.choose(rank, range(number)) for number, rank in enumerate([4, 5, 6])] == [0, 1, 2]
    assert slots.choose(5, [2]) == 1, "0 is free, too, and that of rank 4"
    assert slots.choose(4, [1, 2]) == 0
    assert slots.choose(7, [0, 2]) == 1
    assert slots.choose(5, [0, 1]) == 2, "its slot was given away"


HOST = Supply(
    cpus=(0, 1, 2, 3, 4, 5), max_cpus=4, gpus=("a", "b"), memory_bytes=10, available_bytes=8
)


def claim(cpus=(), gpus=(), memory_bytes=0):
    return Claim(run="a", pid=1, ticket=0, cpus=cpus, gpus=gpus, memory_bytes=memory_bytes)


def need(workers=1, cpus=0, gpus=0, memory_bytes=0):
    return Needs(workers=workers, cpus=cpus, gpus=gpus, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("fits", "lacks", "claims", "free"),
    [
        (need(2, cpus=2), need(1, cpus=5), [], 4),
        (need(1, cpus=1), need(2, cpus=1), [claim(cpus=(0, 1, 5))], 1),
        (need(1, cpus=1), need(2, cpus=1), [claim(cpus=(0, 1)), claim(cpus=(1, 2, 99))], 1),
        (need(4), need(1, cpus=1), [claim(cpus=(0, 1, 2, 3, 4))], 0),  # more than its limit
        (need(2, gpus=1), need(3, gpus=1), [], 2),
        (need(1, gpus=1), need(1, gpus=2), [claim(gpus=("b", "c"))], 1),
        (need(2, memory_bytes=4), need(3, memory_bytes=3), [], 8),
        (need(1, memory_bytes=6), need(1, memory_bytes=7), [claim(memory_bytes=4)], 6),
        (need(5), need(1, memory_bytes=1), [claim(memory_bytes=11)], 0),
    ],
)
def test_a_run_lacks_what_is_more_than_what_is_free(fits, lacks, claims, free):
    assert shortages(fits, HOST, claims) == []
    (found,) = shortages(lacks, HOST, claims)
    asked = {"CPUs": lacks.cpus, "GPUs": lacks.gpus, "memory": lacks.memory_bytes}
    assert (found.free, found.workers, found.each) == (free, lacks.workers, asked[found.what])
    assert found.is_final == (found.each * found.workers > found.total)


def test_workers_get_free_ones_in_order_and_then_others():
    claims = [claim(cpus=(1, 2), gpus=("a",))]
    assert divide(need(2, cpus=2, gpus=1), HOST, claims) == (
        Share(cpus=(0, 3), gpus=("b",)),
        Share(cpus=(4, 5), gpus=("a",)),
    )
    first, second = divide(need(2, cpus=3), HOST, claims)
    assert (first.cpus, second.cpus) == ((0, 3, 4), (5, 1, 2))
    assert divide(need(1), HOST, claims) == (Share(cpus=(), gpus=()),)


def test_a_first_slot_is_the_lowest_free_one():
    assert Slots().choose(0, []) == 0
    assert Slots().choose(0, [1, 2]) == 0
    assert Slots().choose(3, [0, 1]) == 2
    slots = Slots()
    assert [slots.choose(3, [0]), slots.choose(3, []), slots.choose(3, [1])] == [1, 1, 0]
    assert slots.choose(3, []) == 0, "its newest one"
