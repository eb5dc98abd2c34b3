"""What retention verifies first, keeps and deletes."""

import itertools
from dataclasses import replace

import pytest

from holdfast.core.checkpoints.retention import (
    Condition,
    FoundCheckpoint,
    Reason,
    RetentionPolicy,
    decide,
    reasons,
)

CONDITIONS = {
    "?": Condition.UNVERIFIED,
    "ok": Condition.VERIFIED,
    "eio": Condition.UNREADABLE,
    "bad": Condition.CORRUPT,
}


def run(conditions, last, best=None, every=0, pins=(), verify_all=True):
    """Verify what is asked for, until there is a decision.

    Args:
        conditions: What verification finds, by step.
        last, every: The policy.
        best: By step, the step of the best evaluation until then.
        pins: The steps of those that are pinned.
        verify_all: Whether all of the newest are verified.
    """
    found = {
        step: FoundCheckpoint(name=str(step), step=step, is_pinned=step in pins)
        for step in sorted(conditions, reverse=True)
    }
    policy = RetentionPolicy(last=last, every=every, has_best=best is not None)
    verified = []
    while True:
        decision = decide(list(found.values()), policy, verify_all=verify_all)
        if decision.verify is None:
            break
        step = int(decision.verify)
        assert step not in verified
        verified.append(step)
        ok = conditions[step] == "ok"
        found[step] = replace(
            found[step],
            condition=CONDITIONS[conditions[step]],
            best_step=best[step] if best and ok else None,
        )
    kept = sorted(set(conditions) - set(map(int, decision.delete)), reverse=True)
    return kept, verified, decision.has_verified


def test_the_newest_are_verified_and_kept():
    assert run({1: "ok", 2: "ok", 3: "ok", 4: "ok"}, 2) == ([4, 3], [4, 3], True)


def test_a_corrupt_one_counts_for_nothing():
    assert run({1: "ok", 2: "ok", 3: "bad", 4: "ok"}, 2) == ([4, 3, 2], [4, 3, 2], True)


def test_an_unreadable_one_counts_for_nothing_and_stays():
    assert run({1: "ok", 2: "ok", 3: "eio", 4: "ok"}, 1) == ([4], [4], True)
    assert run({1: "ok", 2: "ok", 3: "ok", 4: "eio"}, 1) == ([4, 3], [4, 3], True)


def test_nothing_is_deleted_without_a_verified_one():
    assert run({1: "bad", 2: "eio", 3: "bad"}, 1) == ([3, 2, 1], [3, 2, 1], False)
    assert run({}, 1) == ([], [], False)


def test_the_best_is_verified_before_older_ones_are_deleted():
    best = {1: 1, 2: 2, 3: 2, 4: 2}
    assert run(dict.fromkeys(best, "ok"), 1, best) == ([4, 2], [4, 2], True)


@pytest.mark.parametrize("found", ["bad", "eio"])
def test_where_the_best_is_lost_the_best_before_it_is_kept(found):
    best = {1: 1, 2: 1, 3: 1, 4: 4, 5: 4, 6: 4}
    conditions = {1: "ok", 2: "ok", 3: "ok", 4: found, 5: "ok", 6: "ok"}
    assert run(conditions, 1, best) == ([6, 4, 1], [6, 4, 3, 1], True)
    del conditions[4]
    assert run(conditions, 1, best) == ([6, 1], [6, 3, 1], True)


def test_whatever_is_found_what_is_needed_stays():
    steps = range(1, 6)
    for conditions in itertools.product(["ok", "bad", "eio"], repeat=len(steps)):
        found = dict(zip(steps, conditions, strict=True))
        for last, first_best, every in itertools.product((1, 2), steps, (0, 2)):
            best = {step: min(step, first_best) for step in steps}
            kept, read, has_verified = run(found, last, best, every, pins=(1,))
            assert 1 in kept
            if every:
                for period in ((2, 3), (4, 5)):
                    assert set([step for step in period if found[step] == "ok"][:1]) <= set(kept)
            good = [step for step in steps[::-1] if found[step] == "ok"]
            assert has_verified == bool(good)
            assert set(good[:last]) <= set(kept)
            assert {step for step in read if found[step] != "ok"} <= set(kept)
            if good and found[best[good[0]]] == "ok":
                assert best[good[0]] in kept


def test_one_of_the_newest_is_verified_where_not_all_are():
    conditions = {1: "ok", 2: "ok", 3: "ok", 4: "ok"}
    assert run(conditions, 3, verify_all=False) == ([4, 3, 2], [4], True)
    assert run(conditions | {4: "bad"}, 2, verify_all=False) == ([4, 3, 2], [4, 3], True)
    assert run(dict.fromkeys(conditions, "bad"), 2, verify_all=False)[0] == [4, 3, 2, 1]


def found_with(verified, last, best=None):
    """Checkpoints 1 to `last`, of which one was verified before."""
    steps = range(last, 0, -1)
    found = {step: FoundCheckpoint(name=str(step), step=step) for step in steps}
    known = {"condition": Condition.VERIFIED, "best_step": best}
    found[verified] = replace(found[verified], **known)
    return list(found.values())


def test_where_reading_costs_too_much_the_newest_verified_one_stays_as_well():
    policy = RetentionPolicy(last=2)
    has_best = RetentionPolicy(last=2, has_best=True)
    decision = decide(found_with(1, 5), policy, verify_all=False)
    assert (decision.verify, decision.delete, decision.has_verified) == (None, ("3", "2"), True)
    assert decide(found_with(1, 5), policy).verify == "5"
    # Among those that were not read there may be a better evaluation.
    assert decide(found_with(1, 5), has_best, verify_all=False).verify == "5"
    assert decide(found_with(1, 5, best=1), has_best, verify_all=False).verify == "5"
    decision = decide(found_with(4, 5, best=4), has_best, verify_all=False)
    assert decision.delete == ("3", "2", "1")


def test_what_is_deleted_is_older_than_a_verified_one_that_is_kept():
    steps = range(1, 7)
    for conditions in itertools.product(["ok", "bad", "eio"], repeat=len(steps)):
        found = dict(zip(steps, conditions, strict=True))
        for last, first_best in itertools.product((1, 3), steps):
            best = {step: min(step, first_best) for step in steps}
            kept, read, _ = run(found, last, best, verify_all=False)
            verified = [step for step in read if found[step] == "ok" and step in kept]
            for step in set(steps) - set(kept):
                assert step < max(verified)
                assert step != best[max(verified)]


def test_the_first_at_or_after_each_multiple_is_kept_but_not_before_the_first_multiple():
    steps = dict.fromkeys((5, 10, 14, 22, 27, 41, 46), "ok")
    kept, read, _ = run(steps, 1, every=10)
    assert kept == [46, 41, 22, 10]
    assert set(read) == {46, 22, 10}  # 41 takes no other one's place


def test_what_replaces_nothing_is_not_read():
    steps = dict.fromkeys((10, 20, 30, 35, 40, 50), "ok")
    assert run(steps, 1, every=10) == ([50, 40, 30, 20, 10], [50, 30], True)


@pytest.mark.parametrize("found", ["bad", "eio"])
def test_where_the_first_after_a_multiple_is_lost_the_next_takes_its_place(found):
    steps = {10: found, 12: "ok", 14: "ok", 20: "ok", 30: "ok"}
    kept, read, _ = run(steps, 1, every=10)
    assert kept == [30, 20, 12, 10]  # what is corrupt is quarantined, not deleted
    assert read == [30, 10, 12]


def test_pinned_ones_are_kept_unread():
    steps = dict.fromkeys(range(1, 6), "ok")
    assert run(steps, 1, pins=(2, 5)) == ([5, 2], [5], True)


def test_each_reason_is_given():
    best = {10: 10, 12: 12, 15: 12, 20: 12}
    found = [
        FoundCheckpoint(
            name=str(step),
            step=step,
            condition=Condition.VERIFIED,
            best_step=best[step],
            is_pinned=step == 20,
        )
        for step in sorted(best, reverse=True)
    ]
    assert reasons(found, RetentionPolicy(last=1, every=10)) == {
        "20": (Reason.LAST, Reason.EVERY, Reason.PINNED),
        "12": (Reason.BEST,),
        "10": (Reason.EVERY,),
    }


def test_the_best_is_that_of_the_newest_verified_one():
    found = [
        FoundCheckpoint(name="5", step=5),
        FoundCheckpoint(name="4", step=4, condition=Condition.VERIFIED, best_step=2),
        FoundCheckpoint(name="3", step=3, condition=Condition.VERIFIED, best_step=2),
        FoundCheckpoint(name="2", step=2),
    ]
    kept = reasons(found, RetentionPolicy(last=2, has_best=True))
    assert kept == {"5": (Reason.LAST,), "4": (Reason.LAST,), "2": (Reason.BEST,)}


def test_nothing_is_quarantined_before_all_is_known():
    decision = decide([FoundCheckpoint(name="5", step=5)], RetentionPolicy(last=1))
    assert (decision.verify, decision.delete, decision.has_verified) == ("5", (), False)
