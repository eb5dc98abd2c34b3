"""A checkpoint is decided once, when the drafts of all hosts of one try are there."""

from dataclasses import replace

from holdfast.core.checkpoints.interval import FIRST_S, CheckpointInterval
from holdfast.core.checkpoints.tracker import CheckpointTracker
from holdfast.core.protocol import CheckpointResult, Draft, ResumePoint, Stage, Status

NOW = 5.0
LIVE = ResumePoint(step=8, donors={0: 0})


def status(host, number=0, *, generation=3, root="r", error=""):
    draft = Draft(number=number, step=8, root="" if error else root, error=error)
    return Status(
        host=host, number=1, generation=generation, stage=Stage.RUN, draft=draft if number else None
    )


def collect(tracker, *statuses, hosts="ab", now=NOW):
    return [tracker.collect(each, hosts, now) for each in statuses]


def test_the_draft_of_the_last_host_decides():
    tracker = CheckpointTracker(0, NOW)
    assert collect(tracker, status("a", 1), status("b", 1)) == [False, True]
    assert tracker.result == CheckpointResult(generation=3, number=1, step=8)


def test_a_repeated_report_decides_nothing_again():
    tracker = CheckpointTracker(0, NOW)
    drafts = [status("a", 1), status("b", 1)]
    assert collect(tracker, *drafts) == [False, True]
    assert collect(tracker, *drafts * 2) == [False] * 4


def test_a_checkpoint_that_one_host_could_not_write_counts():
    tracker = CheckpointTracker(0, NOW)
    assert collect(tracker, status("a", 1, error="disk full"), status("b", 1))[1]
    assert tracker.result.error == ""


def test_a_checkpoint_that_no_host_could_write_has_failed():
    tracker = CheckpointTracker(0, NOW)
    collect(tracker, status("a", 1, error="disk full"), status("b", 1, error="read-only"))
    assert tracker.result.error == "disk full"


def test_different_states_are_no_checkpoint():
    tracker = CheckpointTracker(0, NOW)
    collect(tracker, status("a", 1, root="r"), status("b", 1, root="s"))
    assert tracker.result.error == "hosts have written different states: a, b"


def test_the_next_number_and_the_next_generation_are_collected():
    tracker = CheckpointTracker(0, NOW)
    assert collect(tracker, status("a", 1), hosts="a") == [True]
    assert collect(tracker, status("a", 2), hosts="a") == [True]
    assert tracker.result.number == 2
    tracker.on_generation_opened()
    assert collect(tracker, status("a", 1, generation=4), hosts="a") == [True]
    assert tracker.result.generation == 4


def test_drafts_of_an_older_try_or_generation_do_not_count():
    tracker = CheckpointTracker(0, NOW)
    assert collect(tracker, status("a", 1), status("b", 2)) == [False, False]
    assert collect(tracker, status("a", 1), status("a", 2)) == [False, True]
    assert collect(tracker, status("a", 3)) == [False]
    tracker.on_generation_opened()
    assert collect(tracker, status("b", 1, generation=4)) == [False]


def test_a_second_try_of_a_step_is_not_settled_by_the_result_of_the_first():
    tracker = CheckpointTracker(0, NOW)
    tracker.result = CheckpointResult(generation=3, number=1, step=8, error="disk full")
    assert tracker.has_result_for(status("a", 1))
    assert not tracker.has_result_for(status("a", 2))
    assert not tracker.has_result_for(status("a", 1, generation=4))
    assert not tracker.has_result_for(status("a"))


def test_a_coordinator_learns_from_agents_what_one_before_it_has_said():
    tracker = CheckpointTracker(0, NOW)
    newest = CheckpointResult(generation=3, number=2, step=8, error="disk full")
    for result in (None, newest, CheckpointResult(generation=3, number=1, step=4), None):
        tracker.on_reported_result(result)
    assert tracker.result == newest


def test_nobody_is_asked_where_time_does_not_matter():
    tracker = CheckpointTracker(0, NOW)
    assert tracker.next_deadline() is None
    assert not tracker.request_if_due(3, NOW + 1e9)


def test_a_checkpoint_is_asked_for_so_long_after_the_one_before():
    tracker = CheckpointTracker(10, NOW)
    assert tracker.next_deadline() == NOW + 10
    assert not tracker.request_if_due(3, NOW + 9.9)
    assert tracker.request_if_due(3, NOW + 10)
    assert tracker.requested == 1
    assert tracker.next_deadline() is None
    assert not tracker.request_if_due(3, NOW + 11)
    assert collect(tracker, status("a", 1), hosts="a", now=NOW + 12) == [True]
    assert (tracker.requested, tracker.next_deadline()) == (0, NOW + 22)
    assert tracker.request_if_due(3, NOW + 22)
    assert tracker.requested == 2


def test_another_generation_that_did_not_get_its_checkpoint_is_asked_at_once():
    tracker = CheckpointTracker(10, NOW)
    collect(tracker, status("a", 4), hosts="a")
    assert tracker.request_if_due(3, NOW + 10)
    assert tracker.requested == 5
    tracker.on_generation_opened()
    assert tracker.request_if_due(4, NOW + 10.1)
    assert tracker.requested == 1


def test_a_checkpoint_that_a_lost_worker_had_to_stage_is_requested_again():
    tracker = CheckpointTracker(0, NOW)
    halted = Status(host="a", number=1, generation=4, stage=Stage.HALT)
    tracker.on_resumed(4, [halted], LIVE)
    assert tracker.requested == 0
    lost = replace(halted, host="b", lost_checkpoint=True)
    tracker.on_resumed(4, [halted, lost], LIVE)
    assert tracker.requested == 1


def test_the_interval_is_chosen_by_what_checkpoints_cost():
    tracker = CheckpointTracker(None, NOW)
    assert tracker.next_deadline() == NOW + FIRST_S
    draft = Draft(number=1, step=8, root="r", stall_s=0.05, write_s=1.0)
    tracker.collect(replace(status("a", 1), draft=draft), "a", NOW + FIRST_S)
    interval = CheckpointInterval(None, NOW)
    interval.on_saved(draft.stall_s, draft.write_s)
    decided_at = NOW + FIRST_S
    assert tracker.next_deadline() == decided_at + interval.seconds(decided_at)


def interval_after(*points):
    """The interval after generations that have resumed from these points, one after another."""
    tracker = CheckpointTracker(None, NOW)
    for generation, point in enumerate(points, 1):
        tracker.on_resumed(generation, [], point)
    draft = Draft(number=1, step=8, root="r", stall_s=0.01, write_s=0.1)
    tracker.collect(replace(status("a", 1), draft=draft), "a", NOW)
    return tracker.next_deadline() - NOW


def test_only_failures_after_which_a_checkpoint_was_loaded_bring_more_checkpoints():
    loaded = ResumePoint(step=8, donors={}, checkpoint="step-8")
    once = interval_after(LIVE)
    assert interval_after(loaded) == once  # the start of a run is no failure
    assert interval_after(loaded, LIVE) == once
    assert interval_after(LIVE, loaded) < once
    assert interval_after(LIVE, loaded, loaded) < interval_after(LIVE, loaded)


def test_the_interval_is_chosen_by_the_host_that_took_longest():
    def interval(*drafts):
        tracker = CheckpointTracker(None, NOW)
        for host, (stall_s, write_s) in zip("ab", drafts, strict=True):
            draft = Draft(number=1, step=8, root="r", stall_s=stall_s, write_s=write_s)
            tracker.collect(replace(status(host, 1), draft=draft), "ab", NOW)
        return tracker.next_deadline() - NOW

    assert interval((0.01, 0.1), (0.05, 0.1)) == interval((0.05, 0.1), (0.05, 0.1))
    assert interval((0.05, 0.1), (0.01, 0.1)) == interval((0.05, 0.1), (0.05, 0.1))
    assert interval((0.001, 99.0), (0.001, 0.1)) == 198.0


def test_a_checkpoint_that_has_failed_is_requested_again_when_it_is_due():
    tracker = CheckpointTracker(10, NOW)
    assert tracker.request_if_due(3, NOW + 10)
    failed = status("a", 1, error="disk full")
    assert collect(tracker, failed, hosts="a", now=NOW + 12) == [True]
    assert (tracker.requested, tracker.next_deadline()) == (0, NOW + 22)


def test_a_result_that_is_known_already_replaces_none():
    tracker = CheckpointTracker(0, NOW)
    older = CheckpointResult(generation=3, number=9, step=8)
    newer = CheckpointResult(generation=4, number=1, step=9)
    tracker.on_reported_result(older)
    tracker.on_reported_result(newer)
    assert tracker.result == newer
    tracker.on_reported_result(older)
    tracker.on_reported_result(replace(newer, error="another word"))
    assert tracker.result == newer


def test_drafts_of_two_generations_decide_nothing_together():
    tracker = CheckpointTracker(0, NOW)
    assert collect(tracker, status("a", 1)) == [False]
    tracker.on_generation_opened()
    assert collect(tracker, status("b", 1, generation=4)) == [False]
    assert collect(tracker, status("a", 1, generation=4)) == [True]
