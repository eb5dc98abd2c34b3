"""Every second of a run goes to one cause, and to the right one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.record.goodput import (
    LOSSES,
    Cause,
    CommittedSteps,
    EventKind,
    GoodputEvent,
    Losses,
    attribute,
    losses_of_step,
)


def steps_of(*at, first=1, evaluated=0, **losses):
    """Steps committed at these times; `cause={row: seconds}` is lost before a row."""
    columns = {cause: [0.0] * len(at) for cause in LOSSES}
    for cause, rows in losses.items():
        for row, seconds in rows.items():
            columns[Cause(cause)][row] = seconds
    step = range(first, first + len(at))
    return CommittedSteps(step=step, at=at, losses=columns, evaluated=evaluated)


def moment(kind, at, **fields):
    return GoodputEvent(at=float(at), kind=EventKind[kind.upper()], **fields)


def spent(steps, *moments):
    """The seconds of causes that took any."""
    found = attribute(steps, moments)
    return {cause.value: round(seconds, 6) for cause, seconds in found.items() if seconds}


START = (moment("started", 0, workers=2), moment("resumed", 5, workers=2))
TEN = tuple(float(at) for at in range(10, 20))


def test_a_run_without_any_record_has_no_time():
    assert spent(steps_of()) == {}


def test_a_run_initializes_trains_and_ends():
    found = spent(steps_of(*TEN), *START, moment("ended", 21))
    assert found == {"initialization": 9, "useful": 10, "ending": 2}


def test_steps_without_any_event_are_useful():
    assert spent(steps_of(*TEN)) == {"useful": 9}


def test_what_a_step_loses_is_not_useful():
    steps = steps_of(*TEN, data={3: 0.25, 4: 0.25}, checkpoint={5: 0.5}, imbalance={6: 0.125})
    assert spent(steps, *START) == {
        "initialization": 9, "useful": 8.875, "data": 0.5, "checkpoint": 0.5, "imbalance": 0.125,
    }  # fmt: skip


def test_a_live_recovery_is_split_by_its_phases():
    """The step that was interrupted takes a second, as all others do."""
    steps = steps_of(10.0, 11.0, 12.0, 16.0, 17.0, 18.0)
    found = spent(
        steps,
        *START,
        moment("fault", 12.5),
        moment("failure", 13),
        moment("resumed", 14, workers=2, step=3, last_step=3),
    )
    assert found == {
        "initialization": 9, "useful": 6, "recomputed": 0.5, "detection": 0.5, "new_generation": 1,
        "state_transfer": 1,
    }  # fmt: skip


def test_work_that_survivors_keep_is_useful():
    steps = steps_of(10.0, 11.0, 12.0, 14.25, 15.25, 16.25)
    resumed = moment("resumed", 14, workers=2, step=3, last_step=3)
    found = spent(steps, *START, moment("failure", 12.75), resumed)
    assert found == {"initialization": 9, "useful": 6, "new_generation": 1.25}


def test_a_hang_is_detected_late():
    steps = steps_of(10.0, 11.0, 12.0, 40.0, 41.0, 42.0)
    resumed = moment("resumed", 39, workers=2, step=3, last_step=3)
    found = spent(steps, *START, moment("failure", 38, is_silent=True), resumed)
    assert found == {
        "initialization": 9, "useful": 6, "recomputed": 1, "detection": 25, "new_generation": 1,
    }  # fmt: skip


def test_steps_that_a_restart_has_removed_are_recomputed():
    """Steps 3 to 5 were lost with their times; the file continues after step 2."""
    steps = steps_of(10.0, 11.0, 18.0, 19.0, 20.0)
    resumed = moment("resumed", 16, workers=2, step=2, last_step=5)
    found = spent(steps, *START, moment("failure", 14.5), resumed)
    assert found == {
        "initialization": 9, "useful": 5, "recomputed": 3.5, "new_generation": 1.5,
        "state_transfer": 1,
    }  # fmt: skip


def test_steps_whose_first_times_are_kept_are_recomputed_after_the_restart():
    """As on the coordinator's host, which is sent each step once."""
    steps = steps_of(10.0, 11.0, 12.0, 13.0, 18.5, 19.5)
    resumed = moment("resumed", 15, workers=2, step=2, last_step=4)
    found = spent(steps, *START, moment("failure", 13.5), resumed)
    assert found == {
        "initialization": 9, "useful": 6, "recomputed": 2.5, "new_generation": 1.5,
        "state_transfer": 0.5,
    }  # fmt: skip


def test_workers_that_are_missing_take_their_share_until_they_join():
    steps = steps_of(10.0, 11.0, 13.0, 14.0, 15.0, 17.0, 18.0)
    shrunk = moment("resumed", 12, workers=1, step=2, last_step=2)
    joined = moment("resumed", 16, workers=2, step=5, last_step=5)
    found = spent(steps, *START, moment("failure", 11), shrunk, joined)
    assert found == {
        "initialization": 9, "useful": 5.5, "new_generation": 2, "fewer_workers": 1.5,
    }  # fmt: skip


def test_the_time_between_attempts_is_stopped_and_lost_steps_are_recomputed():
    steps = steps_of(10.0, 11.0, 12.0, 110.0, 111.0, 112.0)
    found = spent(
        steps,
        *START,
        moment("failed", 14),
        moment("started", 100, workers=2),
        moment("resumed", 104, workers=2, step=3, last_step=3),
        moment("ended", 113),
    )
    assert found == {
        "initialization": 18, "useful": 6, "recomputed": 2, "stopped": 86, "ending": 1,
    }  # fmt: skip


def test_a_process_that_dies_without_a_word_has_stopped_with_its_last_event():
    again = moment("started", 100, workers=2), moment("resumed", 104, workers=2, step=2)
    steps = steps_of(10.0, 11.0, 110.0, 111.0)
    found = spent(steps, *START, moment("saved", 12, step=2), *again)
    assert found == {"initialization": 18, "useful": 4, "recomputed": 1, "stopped": 88}


def test_a_failure_that_ends_the_run():
    steps = steps_of(10.0, 11.0)
    found = spent(steps, *START, moment("failure", 11.5), moment("failed", 13))
    assert found == {"initialization": 9, "useful": 2, "recomputed": 0.5, "new_generation": 1.5}


def test_a_run_without_a_step_has_only_initialized():
    assert spent(steps_of(), *START, moment("failed", 7)) == {"initialization": 7}


def test_a_failure_before_the_first_step_is_a_recovery():
    resumed = moment("resumed", 9, workers=2)
    found = spent(steps_of(*TEN), *START, moment("failure", 5.5), resumed)
    assert found == {"initialization": 5, "useful": 10, "recomputed": 0.5, "new_generation": 3.5}


def test_a_run_that_trains_has_used_its_newest_seconds():
    assert spent(steps_of(*TEN), *START, moment("saved", 19.5, step=5))["useful"] == 10.5


@pytest.mark.parametrize(
    ("evaluated", "expected"),
    [(0, {"checkpoint": 1.5}), (10, {"checkpoint": 0.75, "evaluation": 1.25})],
)
def test_the_last_evaluation_and_checkpoint_have_no_step_after_them(evaluated, expected):
    steps = steps_of(*TEN, checkpoint={5: 0.5}, evaluated=evaluated)
    found = spent(steps, *START, moment("saved", 20, step=10), moment("ended", 21))
    assert found["ending"] == 1
    pauses = {cause: found[cause] for cause in expected}
    assert sum(pauses.values()) == 1.5
    assert ("evaluation" in found) == bool(evaluated)


def test_the_last_worker_decides_what_a_step_loses():
    workers = {
        "shards": [4, 4], "data": [0.5, 0.1], "forward": [0.5, 1.5], "backward": [0.5, 2.0],
        "collect": [0.0, 0.5],
    }  # fmt: skip
    losses = losses_of_step(workers, 0.0, 5)
    assert losses.data == 0.1
    assert losses.imbalance == pytest.approx(4 - 8 / (4 / 1 + 4 / 4))  # of the best plan
    assert losses_of_step({**workers, "checkpoint": [9.0, 0.0]}, 0.0, 10).checkpoint == 9


def test_a_worker_that_counts_for_the_one_that_it_replaces_tells_nothing():
    workers = {"shards": [4, 4], "data": [0.5, 0.1], "checkpoint": [0.0, 90.0]}
    assert losses_of_step(workers, 0.0, 1) == Losses(data=0.5)
    assert losses_of_step(workers, 0.0, 0.1) == Losses()


def test_a_checkpoint_before_a_failure_is_no_part_of_the_recovery():
    steps = steps_of(10.0, 11.0, 14.0, 15.0, 16.0, checkpoint={2: 9.0})
    steps = replace(steps, pauses={2: Losses(checkpoint=0.5)})
    resumed = moment("resumed", 12.5, workers=2, step=2, last_step=2)
    found = spent(steps, *START, moment("failure", 12), resumed)
    assert found == {
        "initialization": 9, "useful": 5, "checkpoint": 0.5, "recomputed": 1, "new_generation": 0.5,
    }  # fmt: skip


def test_shards_that_are_computed_twice_are_verification():
    losses = losses_of_step({"shards": [4], "forward": [3.0]}, 0.5, 3)
    assert losses == Losses(verification=1.0)


def test_a_worker_that_computes_nothing_is_no_imbalance():
    assert losses_of_step({"shards": [0, 0]}, 0.5, 1) == Losses()
    assert losses_of_step({"shards": [2, 0], "forward": [1.0, 0.0]}, 0.0, 1).imbalance == 0


def test_shards_of_a_short_batch_say_nothing_of_the_speed_of_a_worker():
    workers = {"shards": [2, 2], "forward": [1.0, 0.0]}
    assert losses_of_step(workers, 0.0, 1, is_whole=False).imbalance == 0.5


def test_losses_fill_no_more_than_the_time_there_is():
    assert Losses(2, 3, 4).within(4) == Losses(2, 2)
    assert Losses(2, -1).within(-1) == Losses()


TIMES = st.integers(0, 40).map(float)
MOMENTS = st.builds(
    GoodputEvent, at=TIMES, kind=st.sampled_from(EventKind), workers=st.integers(0, 4),
    step=st.integers(0, 12), last_step=st.integers(0, 12), is_silent=st.booleans(),
)  # fmt: skip


@settings(max_examples=60)
@given(
    at=st.lists(TIMES, max_size=12).map(sorted),
    moments=st.lists(MOMENTS, max_size=16),
    lost=st.lists(st.floats(0, 2), min_size=5, max_size=5),
)
def test_causes_are_disjoint_and_add_up(at, moments, lost):
    gaps = [now - before for before, now in zip([0.0, *at], at, strict=False)]
    rows = [Losses(*lost).within(gap) for gap in gaps]
    columns = {cause: [row[n] for row in rows] for n, cause in enumerate(LOSSES)}
    steps = CommittedSteps(step=range(1, len(at) + 1), at=at, losses=columns)
    found = attribute(steps, moments)
    times = [*at, *(each.at for each in moments)]
    assert min(found.values()) >= 0
    assert sum(found.values()) == pytest.approx(max(times, default=0) - min(times, default=0))
