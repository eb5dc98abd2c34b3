"""Members with any checkpoints agree on the newest one that any of them can verify."""

import itertools

import pytest

from holdfast.core.checkpoints.restore_agreement import (
    NONE,
    Agreed,
    NothingLeft,
    RestoreAgreement,
    Skipped,
    VerifyCandidate,
    whole_on,
)

GOOD, DAMAGED, OTHER = 1, -1, 2
"""The state of a checkpoint on a host: its digest, if it can be verified."""


def agree_on(*hosts):
    """Play the rounds of members on hosts with these checkpoints, by step; returns what they agree
    on, who has it, and what each has skipped.
    """
    members = [RestoreAgreement(host) for host in hosts]
    skipped = [member.skipped for member in members]
    for _ in range(100):
        offers = [member.offer for member in members]
        decisions = [member.on_offers(offers) for member in members]
        if isinstance(decisions[0], NothingLeft):
            (any_offered,) = {each.any_offered for each in decisions}
            return any_offered, (), skipped
        (step,) = {each.step for each in decisions}
        assert [each.is_held for each in decisions] == [step in host for host in hosts]
        digests = [NONE if host.get(step) in (None, DAMAGED) else host[step] for host in hosts]
        (outcome,) = {member.on_digests(digests) for member in members}
        if isinstance(outcome, Agreed):
            return step, outcome.verified, skipped
        assert outcome == Skipped(is_different=any(digest != NONE for digest in digests))
    raise AssertionError("the rounds do not end")


HOLDINGS = [
    {step: state for step, state in zip((1, 2, 3), states, strict=True) if state}
    for states in itertools.product((0, GOOD, DAMAGED, OTHER), repeat=3)
]


def test_two_hosts_agree_on_the_newest_that_one_can_verify_or_both_say_that_there_is_none():
    for hosts in itertools.product(HOLDINGS, repeat=2):
        states = {
            step: {host[step] for host in hosts if host.get(step, DAMAGED) != DAMAGED}
            for step in (1, 2, 3)
        }
        usable = [step for step, found in states.items() if len(found) == 1]
        found, verified, skipped = agree_on(*hosts)
        if usable:
            assert found == max(usable)
            has = [host.get(found, DAMAGED) != DAMAGED for host in hosts]
            assert verified == tuple(index for index in range(2) if has[index])
            for host, steps in zip(hosts, skipped, strict=True):
                assert sorted(steps) == [step for step in sorted(host) if step > found]
        else:
            assert found is any(hosts)


@pytest.mark.parametrize(
    "order",
    [
        *itertools.permutations(
            [{1: GOOD, 2: GOOD, 3: DAMAGED}, {1: GOOD, 2: DAMAGED}, {1: GOOD, 3: DAMAGED}]
        )
    ],
)
def test_three_hosts_agree_in_any_order(order):
    step, verified, _ = agree_on(*order)
    assert (step, verified) == (2, (order.index({1: GOOD, 2: GOOD, 3: DAMAGED}),))


def test_a_host_without_checkpoints_takes_part():
    assert agree_on({1: GOOD}, {}) == (1, (0,), [[], []])
    assert agree_on({}, {}) == (False, (), [[], []])


def test_what_a_member_does_not_have_it_does_not_skip():
    member = RestoreAgreement([1])
    assert member.on_offers([1, 3]) == VerifyCandidate(3, is_held=False)
    assert member.on_digests([NONE, NONE]) == Skipped(is_different=False)
    assert (member.offer, member.skipped) == (1, [])


def test_what_one_reader_of_a_host_could_not_verify_none_of_it_has():
    hosts, members = [(0, 1), (2, 3)], (0, 1, 2, 3)
    assert whole_on(hosts, members, (7, 7, 7, 7)) == (7, 7, 7, 7)
    assert whole_on(hosts, members, (7, NONE, 7, 7)) == (NONE, NONE, 7, 7)
    assert whole_on(hosts, members, (NONE, 7, 7, NONE)) == (NONE,) * 4


def test_the_newest_checkpoint_is_offered_first_in_whatever_order_they_are_found():
    member = RestoreAgreement([2, 3, 1])
    offers = []
    for _ in range(3):
        offers.append(member.offer)
        member.on_offers([member.offer])
        member.on_digests([NONE])
    assert (offers, member.offer) == ([3, 2, 1], NONE)
    assert member.skipped == [3, 2, 1]
