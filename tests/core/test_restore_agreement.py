"""Members with any checkpoints agree on the newest one that all have and can verify."""

import itertools

import pytest

from holdfast.core.restore_agreement import (
    NONE,
    Comparison,
    NothingLeft,
    RestoreAgreement,
    Skip,
    Verify,
)

GOOD, DAMAGED, OTHER = 1, -1, 2
"""The state of a checkpoint on a host: its digest, if it can be verified."""


def agree_on(*hosts):
    """Play the rounds of members on hosts with these checkpoints, by step; returns what they agree
    on, and what each has skipped.
    """
    members = [RestoreAgreement(host) for host in hosts]
    for _ in range(100):
        offers = [member.offer for member in members]
        decisions = [member.on_offers(offers) for member in members]
        kinds = {type(each) for each in decisions}
        skipped = [member.skipped for member in members]
        if kinds == {NothingLeft}:
            (any_offered,) = {each.any_offered for each in decisions}
            return any_offered, skipped
        if Skip in kinds:
            assert kinds == {Skip}
            continue
        (step,) = {each.step for each in decisions if isinstance(each, Verify)}
        digests = [NONE if host[step] == DAMAGED else host[step] for host in hosts]
        (outcome,) = {member.on_digests(digests) for member in members}
        if outcome == Comparison.AGREED:
            return step, skipped
        assert (outcome == Comparison.UNVERIFIED) == (NONE in digests)
    raise AssertionError("the rounds do not end")


HOLDINGS = [
    {step: state for step, state in zip((1, 2, 3), states, strict=True) if state}
    for states in itertools.product((0, GOOD, DAMAGED, OTHER), repeat=3)
]


def test_two_hosts_agree_on_the_newest_common_one_or_both_say_that_there_is_none():
    for hosts in itertools.product(HOLDINGS, repeat=2):
        first, second = hosts
        common = [
            step for step in first.keys() & second.keys() if first[step] == second[step] != DAMAGED
        ]
        found, skipped = agree_on(*hosts)
        if common:
            assert found == max(common)
            for host, steps in zip(hosts, skipped, strict=True):
                assert sorted(steps) == [step for step in sorted(host) if step > found]
        else:
            assert found is (bool(first) or bool(second))


@pytest.mark.parametrize(
    "order",
    [
        *itertools.permutations(
            [{1: GOOD, 2: GOOD, 3: GOOD}, {1: GOOD, 2: DAMAGED}, {1: GOOD, 2: GOOD}]
        )
    ],
)
def test_three_hosts_agree_in_any_order(order):
    assert agree_on(*order)[0] == 1


def test_a_member_without_checkpoints_ends_the_rounds_for_all():
    assert agree_on({1: GOOD}, {}) == (True, [[], []])
    assert agree_on({}, {}) == (False, [[], []])


def test_all_newer_steps_are_skipped_at_once():
    member = RestoreAgreement([1, 2, 3])
    assert member.on_offers([3, 1]) == Skip((3, 2))
    assert member.offer == 1
