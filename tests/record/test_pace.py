"""Pace: what is read from the end of a record is what the curves end with."""

import math

import pytest

from holdfast.record.run_record import RunRecord
from holdfast.record.views.pace import epochs_of, left_s, mean_loss, pace_of, step_s
from holdfast.record.views.run_at import RunAt
from holdfast.views.dashboard.panels.throughput import speed_of
from recorded_run import LAST_STEP, NOW, STARTED, write_run


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run")
    return RunAt(record=RunRecord(tmp_path / "run"), now=NOW)


@pytest.mark.parametrize("now", [NOW, 1100.0, 1500.0])
def test_the_pace_is_where_the_curve_of_speed_ends(run, now):
    then = RunAt(record=run.record, now=now)
    pace, curve = pace_of(then), speed_of(run.record, STARTED, then.stepped_until)
    assert pace.goodput == pytest.approx(curve.goodput[-1])
    assert pace.throughput == pytest.approx(curve.throughput[-1], nan_ok=True)


def test_the_rest_takes_as_long_as_the_steps_before(run):
    assert left_s(run) == pytest.approx(20 * (1025.25 - 1005.5) / 39)
    assert epochs_of(run.record) == (4.0, 6)
    assert step_s(run.record) == 0.5
    last = range(LAST_STEP - 19, LAST_STEP + 1)
    assert mean_loss(run.record) == pytest.approx(sum(2 / step for step in last) / 20)
    assert math.isnan(mean_loss(run.record, 0))


def test_before_the_first_step_nothing_is_known(tmp_path):
    empty = RunAt(record=RunRecord(tmp_path), now=NOW)
    assert (pace_of(empty), left_s(empty), epochs_of(empty.record)) == (None, None, None)
