"""A checkpoint is asked for once all parts of one try are there, and settled once."""

from holdfast.core.checkpoint_tracker import CheckpointTracker
from holdfast.core.protocol import CheckpointResult, Part, Stage, Status

NOW = 5.0


def status(host, *, generation=3, **parts):
    told = {int(rank[1:]): Part(number=number, step=8) for rank, number in parts.items()}
    return Status(host=host, number=1, generation=generation, stage=Stage.RUN, parts=told)


def test_the_last_part_asks_for_the_commit():
    saving = CheckpointTracker(0, NOW)
    assert saving.collect(status("a", r0=1, r1=1), range(3)) == []
    (commit,) = saving.collect(status("b", r2=1), range(3))
    assert (commit.generation, commit.number, commit.step) == (3, 1, 8)
    assert list(commit.parts) == [0, 1, 2]


def test_a_repeated_report_does_not_commit_the_same_checkpoint_twice():
    saving = CheckpointTracker(0, NOW)
    saving.collect(status("a", r0=1, r1=1), range(3))
    (commit,) = saving.collect(status("b", r2=1), range(3))
    heartbeats = [status("a", r0=1, r1=1), status("b", r2=1)]
    for heartbeat in heartbeats * 2:
        assert saving.collect(heartbeat, range(3)) == []
    saving.on_completed(CheckpointResult(generation=3, number=commit.number, step=8), NOW)
    for heartbeat in heartbeats:
        assert saving.collect(heartbeat, range(3)) == []


def test_after_a_commit_the_next_number_and_the_next_generation_are_collected():
    saving = CheckpointTracker(0, NOW)
    assert saving.collect(status("a", r0=1), range(1))
    assert saving.collect(status("a", r0=2), range(1))[0].number == 2
    saving.on_generation_opened()
    assert saving.collect(status("a", generation=4, r0=1), range(1))[0].generation == 4


def test_parts_of_an_older_try_or_generation_do_not_count():
    saving = CheckpointTracker(0, NOW)
    assert saving.collect(status("a", r0=1, r1=2), range(2)) == []
    assert saving.collect(status("a", r0=2, r1=2), range(2))[0].number == 2
    assert saving.collect(status("a", r0=3), range(2)) == []
    saving.on_generation_opened()
    assert saving.collect(status("a", r1=1), range(2)) == []


def test_a_second_try_of_a_step_is_not_settled_by_the_verdict_on_the_first():
    saving = CheckpointTracker(0, NOW)
    saving.result = CheckpointResult(generation=3, number=1, step=8, error="disk full")
    assert saving.has_result_for(status("a", r0=1))
    assert not saving.has_result_for(status("a", r0=2))
    assert not saving.has_result_for(status("a", generation=4, r0=1))
    assert not saving.has_result_for(status("a"))


def test_a_coordinator_learns_from_agents_what_one_before_it_has_said():
    saving = CheckpointTracker(0, NOW)
    newest = CheckpointResult(generation=3, number=2, step=8, error="disk full")
    for verdict in (None, newest, CheckpointResult(generation=3, number=1, step=4), None):
        saving.on_reported_result(verdict)
    assert saving.result == newest


def test_nobody_is_asked_where_time_does_not_matter():
    saving = CheckpointTracker(0, NOW)
    assert saving.next_deadline() is None
    assert not saving.request_if_due(3, NOW + 1e9)


def test_a_checkpoint_is_asked_for_so_long_after_the_one_before():
    saving = CheckpointTracker(10, NOW)
    assert saving.next_deadline() == NOW + 10
    assert not saving.request_if_due(3, NOW + 9.9)
    assert saving.request_if_due(3, NOW + 10)
    assert saving.requested == 1
    assert saving.next_deadline() is None
    assert not saving.request_if_due(3, NOW + 11)
    saving.on_completed(CheckpointResult(generation=3, number=1, step=8), NOW + 12)
    assert (saving.requested, saving.next_deadline()) == (0, NOW + 22)
    assert saving.request_if_due(3, NOW + 22)
    assert saving.requested == 2


def test_another_generation_that_did_not_get_its_checkpoint_is_asked_at_once():
    saving = CheckpointTracker(10, NOW)
    saving.on_completed(CheckpointResult(generation=3, number=4, step=8), NOW)
    assert saving.request_if_due(3, NOW + 10)
    assert saving.requested == 5
    saving.on_generation_opened()
    assert saving.request_if_due(4, NOW + 10.1)
    assert saving.requested == 1
