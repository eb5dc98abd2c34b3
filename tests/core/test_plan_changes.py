"""When a plan changes, and to what: exact cases without noise."""

import itertools

import pytest

from holdfast.core.balance.balance import EARLY, EVERY, REST_STEPS, Balance
from holdfast.core.balance.planner import Cost
from holdfast.core.balance.times import StepTimes
from holdfast.errors import JobError

SECOND_NS = 10**9


def observe(balance, *per_shard_s, rest_s=0.0):
    """One step in which a shard takes each worker so long; returns the next plan."""
    work = zip(balance.counts, per_shard_s, strict=True)
    rest_ns = round(rest_s * SECOND_NS)
    balance.observe([StepTimes(round(n * s * SECOND_NS), rest_ns) for n, s in work])
    return balance.counts


def steps_until_a_change(balance, *per_shard_s, most=40):
    before = balance.counts
    return next((n for n in range(1, most) if observe(balance, *per_shard_s) != before), None)


def test_costs_are_those_of_a_shard_and_of_the_rest_in_seconds():
    balance = Balance(8, (6, 2), [], is_fixed=True, caps=[7, 5])
    observe(balance, 0.5, 2.0, rest_s=0.25)
    assert balance.costs() == [Cost(0.25, 0.5, 7), Cost(0.25, 2.0, 5)]
    assert [cost.cap for cost in Balance(8, (4, 4), []).costs()] == [8, 8]


def test_shards_that_take_no_time_are_faster_than_all_others():
    assert observe(Balance(8, (4, 4), []), 0.0, 1.0) == (7, 1)


@pytest.mark.parametrize(
    ("slower", "steps", "counts"),
    [
        (1.0, None, (50, 50)),
        (1.03, None, (50, 50)),  # 51 and 49 would save 1 %
        (1.08, 8, (52, 48)),  # 4 %: as soon as it is known that the times hardly vary
        (1.2, 3, (55, 45)),
        (1.5, 1, (60, 40)),
        (4.0, 1, (80, 20)),
    ],
)
def test_the_more_a_plan_saves_the_sooner_it_is_taken(slower, steps, counts):
    balance = Balance(100, (50, 50), [])
    assert steps_until_a_change(balance, 1.0, slower) == steps
    assert balance.counts == counts
    mirrored = Balance(100, (50, 50), [])
    assert steps_until_a_change(mirrored, slower, 1.0) == steps


def test_a_fixed_plan_stays_whatever_is_measured():
    balance = Balance(8, (4, 4), [], is_fixed=True)
    assert steps_until_a_change(balance, 1.0, 9.0) is None
    assert balance.estimates[1].per_shard_s == pytest.approx(9.0)


def test_a_plan_stays_for_some_steps_except_after_a_change_of_speed():
    balance = Balance(100, (50, 50), [])
    assert observe(balance, 1.0, 1.5) == (60, 40)
    assert observe(balance, 1.0, 6.0) == (60, 40)  # it may be noise
    assert observe(balance, 1.0, 6.0) == (86, 14)  # it lasts
    balance = Balance(100, (50, 50), [])
    assert observe(balance, 1.0, 1.5) == (60, 40)
    assert steps_until_a_change(balance, 2.0, 1.5) == REST_STEPS


def test_a_change_of_any_worker_is_followed_in_its_second_step():
    for slow in range(3):
        balance = Balance(30, (10, 10, 10), [])
        for _ in range(EARLY + EVERY):
            observe(balance, 1.0, 1.0, 1.0)
        speeds = [1.0] * 3
        speeds[slow] = 4.0
        assert steps_until_a_change(balance, *speeds) == 2
        assert balance.counts[slow] == 3
        assert sum(balance.counts) == 30


def test_a_better_plan_is_looked_for_in_each_of_the_first_steps_and_later_in_some():
    plans, looks = [], []
    balance = Balance(8, (4, 4), [range(2)], fits=plans.append)
    for step in range(1, EARLY + 5 * EVERY):
        plans.clear()
        observe(balance, 1.0, 3.0)
        looks += [step] * bool(plans)
    first = [step for step in looks if step < EARLY]
    later = [step for step in looks if step >= EARLY]
    assert first == list(range(1, EARLY))
    assert len(later) >= 4
    assert {b - a for a, b in itertools.pairwise(later)} == {EVERY}
    assert balance.counts == (4, 4)


def test_a_drift_too_slow_for_a_change_of_speed_is_followed():
    balance, slower = Balance(100, (50, 50), []), 1.0
    for _ in range(150):
        slower *= 1.0005
        observe(balance, 1.0, slower)
    assert 51 <= balance.counts[0] <= 52


@pytest.mark.parametrize(
    ("known", "scores", "counts"),
    [
        ([None, None, None], (), (4, 4, 4)),  # nothing is known
        ([None, None, None], (1, 1, 4), (2, 2, 8)),
        ([(1.0, 0.0), (1.0, 0.0), (0.25, 0.0)], (), (2, 2, 8)),
        ([(1.0, 0.0), (1.0, 0.0), (0.25, 0.0)], (4, 1, 1), (2, 2, 8)),  # a time is better
        ([(1.0, 9.0), (1.0, 0.0), (1.0, 0.0)], (), (1, 6, 5)),
    ],
)
def test_the_first_plan_follows_from_what_is_known(known, scores, counts):
    balance = Balance(12, (4, 4, 4), [])
    balance.begin(known, scores)
    assert balance.counts == counts


@pytest.mark.parametrize(
    ("known", "scores", "costs"),
    [
        ([(3.0, 0.5), None, (1.0, 0.1)], (), [(3.0, 0.5), (2.0, 0.3), (1.0, 0.1)]),
        ([(2.0, 0.5), None, (1.0, 0.1)], (0.5, 2.0, 1.5), [(2.0, 0.5), (0.625, 0.3), (1.0, 0.1)]),
    ],
)
def test_a_worker_whose_times_are_not_known_is_like_the_others_at_its_speed(known, scores, costs):
    balance = Balance(12, (4, 4, 4), [])
    balance.begin(known, scores)
    found = [(cost.per_shard_s, cost.fixed_s) for cost in balance.costs()]
    assert found == [pytest.approx(each) for each in costs]


def test_times_are_not_used_for_a_plan_that_stays():
    balance = Balance(8, (4, 4), [], is_fixed=True)
    balance.begin([(1.0, 0.0), (3.0, 0.0)])
    assert balance.counts == (4, 4)
    balance.begin([(1.0, 0.0), (3.0, 0.0)], (1, 3))
    assert balance.counts == (2, 6)


def test_scores_respect_caps():
    balance = Balance(8, (4, 4), [], caps=[8, 5])
    balance.begin([None, None], (1, 3))
    assert balance.counts == (3, 5)


@pytest.mark.parametrize(
    ("fitting", "counts"),
    [
        ({(6, 2), (7, 1)}, (6, 2)),
        ({(5, 3), (4, 4)}, (4, 4)),  # far slower: the first plan stays
        (set(), (4, 4)),
    ],
)
def test_a_plan_is_taken_only_if_the_memory_is_enough(fitting, counts):
    balance = Balance(8, (4, 4), [range(2)], fits=lambda plan: plan in fitting)
    balance.begin([(1.0, 0.0), (3.0, 0.0)])
    assert balance.counts == counts
    balance = Balance(8, (4, 4), [range(2)], fits=lambda plan: plan in fitting)
    observe(balance, 1.0, 3.0)
    assert balance.counts == counts


def test_a_slower_plan_is_taken_that_needs_less_memory():
    # 19 and 13 are best; 20 and 12 take 5 % longer and leave fewer partial sums.
    plans = []
    balance = Balance(32, (16, 16), [range(2)], fits=lambda plan: plans.append(plan) or False)
    balance.begin([(1.0, 0.0), (1.5, 0.0)])
    assert balance.counts == (16, 16)
    assert plans[0] == (19, 13)
    assert (20, 12) in plans
    balance = Balance(32, (16, 16), [range(2)], fits=lambda plan: plan == (20, 12))
    balance.begin([(1.0, 0.0), (1.5, 0.0)])
    assert balance.counts == (20, 12)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_policy_is_asked_with_costs_and_the_number_of_shards(has_begun):
    asked = []

    def policy(costs, num_shards):
        asked.append((costs, num_shards))
        return [5, 3]

    balance = Balance(8, (4, 4), [range(2)], policy, caps=[8, 6])
    if has_begun:
        balance.begin([(1.0, 0.1), (2.0, 0.2)])
        assert asked == [([Cost(0.1, 1.0, 8), Cost(0.2, 2.0, 6)], 8)]
    else:
        balance.begin([None, None])
        assert asked == []
        observe(balance, 1.0, 2.0)
        assert asked == [([Cost(0.0, 1.0, 8), Cost(0.0, 2.0, 6)], 8)]
    assert balance.counts == (5, 3)


@pytest.mark.parametrize(
    "chosen", [None, 8, [8], [4, 4, 0], [8, 0], [9, -1], [4, 5], [3, 4], [4.0, 4.0], [True, 7]]
)
def test_what_is_no_plan_of_a_policy_is_refused(chosen):
    balance = Balance(8, (4, 4), [], lambda *_: chosen)
    with pytest.raises(JobError, match=r"the balance policy returned .* 8 in all"):
        observe(balance, 1.0, 1.0)


def test_a_policy_that_raises_is_named():
    balance = Balance(8, (4, 4), [], lambda *_: 1 // 0)
    with pytest.raises(JobError, match="the balance policy raised ZeroDivisionError"):
        observe(balance, 1.0, 1.0)


def test_a_policy_may_leave_a_single_shard():
    balance = Balance(8, (4, 4), [], lambda *_: (7, 1))
    assert observe(balance, 1.0, 1.0) == (7, 1)


def test_times_and_scores_of_another_number_of_workers_are_refused():
    balance = Balance(8, (4, 4), [])
    for call in (
        lambda: balance.observe([StepTimes(1)]),
        lambda: balance.begin([(1.0, 0.0)]),
        lambda: balance.begin([(1.0, 0.0), None], [1.0]),
        lambda: balance.begin([None, None], [1.0]),
        lambda: Balance(8, (4, 4), [], caps=[8]).costs(),
    ):
        with pytest.raises(ValueError, match="zip"):
            call()
