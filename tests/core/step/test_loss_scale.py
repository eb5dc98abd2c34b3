"""The scale of losses: what a step makes of it."""

import pytest

from holdfast.core.step.loss_scale import GROWTH_INTERVAL, MAX_LOG2, LossScale


def test_a_run_begins_with_the_scale_of_pytorch():
    assert LossScale().value == 2**16


def test_a_step_that_is_not_finite_halves_the_scale_and_begins_the_count_again():
    assert LossScale(log2=16, good_steps=7).after(is_finite=False) == LossScale(log2=15)


def test_finite_steps_in_a_row_double_the_scale():
    scale = LossScale(log2=10)
    for step in range(1, GROWTH_INTERVAL):
        scale = scale.after(is_finite=True)
        assert scale == LossScale(log2=10, good_steps=step)
    assert scale.after(is_finite=True) == LossScale(log2=11)


def test_the_scale_stays_within_its_limits():
    assert LossScale(log2=0).after(is_finite=False) == LossScale(log2=0)
    most = LossScale(log2=MAX_LOG2, good_steps=GROWTH_INTERVAL - 1)
    assert most.after(is_finite=True) == LossScale(log2=MAX_LOG2)


@pytest.mark.parametrize("values", [(-1, 0), (MAX_LOG2 + 1, 0), (16, -1), (16, GROWTH_INTERVAL)])
def test_what_is_no_scale_is_refused(values):
    with pytest.raises(ValueError, match="is no loss scale"):
        LossScale(log2=values[0], good_steps=values[1])
