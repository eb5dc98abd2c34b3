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
