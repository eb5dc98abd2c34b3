"""Stop rules: who continues past a rung, as tables."""

import pytest

from holdfast.core.tuning.rungs import StopRule, brackets, reason_to_stop, rungs

ASHA = StopRule(name="asha")
EPOCHS = 20


def stopped(rule, curves, complete=(), epochs=EPOCHS):
    """Why the last of these trials stops, whose scores of each epoch are given."""
    curves = {n: list(enumerate(scores, 1)) for n, scores in enumerate(curves)}
    return reason_to_stop(rule, max(curves), curves, complete, epochs)


@pytest.mark.parametrize(
    ("curves", "reason"),
    [
        ([[0.1]], ""),  # nothing to compare with
        ([[0.5], [0.6]], ""),
        ([[0.5], [0.4]], "2 of 2 at epoch 1, where 1 continue"),
        ([[0.5], [0.5]], ""),  # equals continue alike
        ([[1], [2], [3], [4], [5], [4.5]], ""),  # the best third of six
        ([[1], [2], [3], [4], [5], [3.5]], "3 of 6 at epoch 1, where 2 continue"),
        ([[9], [1, 2]], ""),  # there is no rung at epoch 2
        ([[1, 1, 9], [9, 9, 1]], "2 of 2 at epoch 3, where 1 continue"),
        ([[1, 1], [9, 9, 1]], ""),  # the other has not reached it
        ([[0.5], [float("-inf")]], "2 of 2 at epoch 1, where 1 continue"),
    ],
)
def test_asha_keeps_the_best_third_of_those_that_reach_a_rung(curves, reason):
    assert stopped(ASHA, curves) == reason


def test_evaluations_may_be_further_apart_than_rungs():
    curves = {0: [(2, 0.5), (4, 0.5)], 1: [(2, 0.6), (4, 0.4)]}
    assert reason_to_stop(ASHA, 1, curves, (), EPOCHS) == "2 of 2 at epoch 3, where 1 continue"


def test_rungs_are_epochs_below_the_last():
    assert rungs(ASHA, 20) == [1, 3, 9]
    assert rungs(ASHA, 9) == [1, 3]
    assert rungs(StopRule(name="asha", eta=2, min_epochs=3), 20) == [3, 6, 12]
    assert rungs(ASHA, 1) == []


def test_hyperband_has_the_brackets_of_its_paper():
    """Li et al. 2018, table 1: eta 3, and 81 times the least resource."""
    counts = [brackets(ASHA, 81).count(skipped) for skipped in range(5)]
    assert counts == [81, 34, 15, 8, 5]


def test_hyperband_compares_a_trial_with_those_of_its_bracket():
    rule = StopRule(name="hyperband")
    of = brackets(rule, EPOCHS)
    lenient = of.index(3)  # has no rungs
    curves = {0: [(1, 0.9)], 1: [(1, 0.1)], lenient: [(1, 0.1)]}
    assert reason_to_stop(rule, lenient, curves, (), EPOCHS) == ""
    del curves[lenient]
    assert reason_to_stop(rule, 1, curves, (), EPOCHS) == "2 of 2 at epoch 1, where 1 continue"


def test_median_stops_what_is_below_the_running_averages_of_complete_trials():
    rule = StopRule(name="median")
    others = [[0.2, 0.4], [0.3, 0.5], [0.4, 0.6], [0.5, 0.7]]  # 0.3, 0.4, 0.5, 0.6
    assert stopped(rule, [*others, [0.1, 0.44]], range(4)) == (
        "below the median of 4 trials until epoch 2"
    )
    assert stopped(rule, [*others, [0.46, 0.1]], range(4)) == ""  # its best counts
    assert stopped(rule, [*others, [0.1, 0.1]], range(3)) == ""  # three are too few


def test_no_rule_stops_nothing():
    assert stopped(StopRule(), [[0.9], [0.1]]) == ""


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ([0.1, 0.1, 0.5], ""),  # as good as the median
        ([0.5, 0.1, 0.1], ""),  # its best counts, whenever it was
        ([0.1, 0.1, 0.49], "below the median of 4 trials until epoch 3"),
    ],
)
def test_median_compares_the_best_value_with_averages_until_the_same_epoch(last, reason):
    others = [[0.25, 0.25, 0.25, 9.0], [0.5] * 3, [0.25, 0.5, 0.75], [0.75] * 3]
    assert stopped(StopRule(name="median"), [*others, last], range(4)) == reason


def test_median_stops_nothing_before_its_first_epoch():
    rule = StopRule(name="median", min_epochs=2)
    others = [[0.5, 0.5]] * 4
    assert stopped(rule, [*others, [0.1]], range(4)) == ""
    assert stopped(rule, [*others, [0.1, 0.1]], range(4)) != ""


def test_median_counts_complete_trials_that_were_evaluated_by_then_and_not_itself():
    rule = StopRule(name="median", min_trials=1)
    curves = {0: [(4, 0.9)], 1: [(2, 0.1), (3, 0.1)]}
    assert reason_to_stop(rule, 1, curves, [0, 1], EPOCHS) == ""
    curves[1].append((4, 0.1))
    assert reason_to_stop(rule, 1, curves, [0, 1], EPOCHS) == (
        "below the median of 1 trials until epoch 4"
    )
    assert reason_to_stop(rule, 1, curves, [1], EPOCHS) == ""


def test_a_rung_counts_once_and_by_the_first_score_from_it_on():
    best = [(1, 0.1), (4, 0.9), (5, 0.1)]
    assert reason_to_stop(ASHA, 1, {0: best, 1: [(2, 0.2), (3, 0.2)]}, (), EPOCHS) == (
        "2 of 2 at epoch 3, where 1 continue"
    )
    passed = [(1, 0.9), (3, 0.9), (4, 0.1)]
    assert reason_to_stop(ASHA, 1, {0: best, 1: passed}, (), EPOCHS) == ""


def test_a_rung_keeps_one_in_eta():
    halves = StopRule(name="asha", eta=2)
    assert stopped(halves, [[1], [2], [3], [2.5]]) == ""
    assert stopped(halves, [[1], [2], [3], [1.5]]) == "3 of 4 at epoch 1, where 2 continue"


def test_hyperband_has_its_first_rung_later_in_every_bracket():
    rule = StopRule(name="hyperband")
    of = brackets(rule, EPOCHS)
    assert of == [*[0] * 27, *[1] * 12, *[2] * 6, *[3] * 4]
    apart = {0: [(1, 0.9), (3, 0.9)], 27: [(3, 0.1)]}  # of different brackets
    assert reason_to_stop(rule, 27, apart, (), EPOCHS) == ""
    for first, rung in ((0, 1), (27, 3), (39, 9)):
        numbers = (first, first + len(of))  # of the same bracket in two rounds
        curves = {numbers[0]: [(e, 0.9) for e in range(1, rung + 1)]}
        curves[numbers[1]] = [(e, 0.1) for e in range(1, rung)]
        if curves[numbers[1]]:
            assert reason_to_stop(rule, numbers[1], curves, (), EPOCHS) == ""
        curves[numbers[1]].append((rung, 0.1))
        assert reason_to_stop(rule, numbers[1], curves, (), EPOCHS) == (
            f"2 of 2 at epoch {rung}, where 1 continue"
        )
