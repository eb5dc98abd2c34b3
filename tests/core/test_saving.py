"""Checkpoints of one host, from the first part that is staged to their results."""

from dataclasses import replace

from holdfast.core.actions import CompleteCheckpoint, KeepSnapshot, PrepareCheckpoint
from holdfast.core.checkpoints.part_collector import Saving
from holdfast.core.events import PartStaged
from holdfast.core.protocol import CheckpointPart, CheckpointResult, Draft

PART = CheckpointPart(number=1, step=8, count=2)
SECOND = CheckpointPart(number=2, step=9, count=2)


def result_of(draft, error=""):
    return CheckpointResult(generation=1, number=draft.number, step=draft.step, error=error)


def test_a_checkpoint_is_written_once_all_workers_have_staged_their_parts():
    saving = Saving()
    assert saving.on_staged(PartStaged(1, 1, PART)) == []
    assert saving.is_incomplete
    assert saving.on_staged(PartStaged(1, 1, SECOND)) == []
    assert saving.on_staged(PartStaged(0, 1, PART)) == [PrepareCheckpoint(1, {0: PART, 1: PART})]
    assert saving.on_staged(PartStaged(0, 1, SECOND)) == [
        PrepareCheckpoint(1, {0: SECOND, 1: SECOND})
    ]
    assert not saving.is_incomplete


def test_drafts_are_reported_one_at_a_time_in_order():
    saving, first, second = Saving(), Draft(number=1, step=8), Draft(number=2, step=9)
    saving.on_prepared(first)
    saving.on_prepared(second)
    assert saving.draft == first
    assert saving.on_result(result_of(first)) == [CompleteCheckpoint(result_of(first))]
    assert saving.draft == second
    assert saving.on_result(result_of(first)) == []
    assert saving.on_result(result_of(second, "full")) == [
        CompleteCheckpoint(result_of(second, "full"))
    ]
    assert (saving.draft, saving.result) == (None, result_of(second, "full"))


def test_a_draft_whose_result_was_missed_is_discarded():
    saving, first, second = Saving(), Draft(number=1, step=8), Draft(number=2, step=9)
    saving.on_prepared(first)
    saving.on_prepared(second)
    missed, known = saving.on_result(result_of(second))
    assert (missed.result.number, missed.result.step) == (1, 8)
    assert missed.result.error
    assert known == CompleteCheckpoint(result_of(second))


def test_parts_are_taken_until_the_workers_resume():
    saving = Saving()
    saving.on_staged(PartStaged(0, 1, PART))
    saving.end_generation()
    assert saving.on_staged(PartStaged(1, 1, PART)) == [PrepareCheckpoint(1, {0: PART, 1: PART})]
    saving.on_staged(PartStaged(0, 1, SECOND))
    assert saving.is_incomplete, "rank 1 has died, so another checkpoint is needed"
    saving.begin_generation(2)
    assert not saving.is_incomplete
    assert saving.on_staged(PartStaged(1, 1, SECOND)) == []
    new = replace(PART, count=1)
    assert saving.on_staged(PartStaged(0, 2, new)) == [PrepareCheckpoint(2, {0: new})]


def test_the_newest_snapshot_is_written_if_all_workers_are_lost():
    saving = Saving()
    for number in (1, 2):
        kept = CheckpointPart(number=number, step=number, count=1, in_memory=True)
        assert saving.on_staged(PartStaged(0, 1, kept)) == [KeepSnapshot(1, number)]
    assert not saving.is_incomplete
    assert saving.write_snapshot() == [PrepareCheckpoint(1, {0: kept})]
    assert saving.write_snapshot() == []


def test_a_snapshot_that_is_older_than_a_checkpoint_is_not_written():
    saving = Saving()
    saving.on_staged(PartStaged(0, 1, CheckpointPart(number=1, step=7, count=1, in_memory=True)))
    saving.on_staged(PartStaged(0, 1, CheckpointPart(number=2, step=8, count=1)))
    assert saving.write_snapshot() == []


def test_a_snapshot_is_dropped_once_workers_resume():
    saving = Saving()
    saving.on_staged(PartStaged(0, 1, CheckpointPart(number=1, step=7, count=1, in_memory=True)))
    saving.begin_generation(2)
    assert saving.write_snapshot() == []


def test_nothing_that_is_staged_of_an_older_generation_is_written_once_workers_resume():
    saving = Saving()
    saving.begin_generation(2)
    alone = replace(PART, count=1)
    assert saving.on_staged(PartStaged(0, 1, alone)) == []
    assert not saving.is_incomplete
    assert saving.on_staged(PartStaged(0, 2, alone)) == [PrepareCheckpoint(2, {0: alone})]


def test_a_draft_waits_for_no_result_after_its_generation():
    saving, draft = Saving(), Draft(number=1, step=8)
    saving.on_prepared(draft)
    saving.end_generation()
    assert saving.draft is None
    assert saving.on_result(result_of(draft)) == []


def test_parts_are_written_in_the_order_of_their_ranks():
    saving = Saving()
    saving.on_staged(PartStaged(1, 1, PART))
    (prepare,) = saving.on_staged(PartStaged(0, 1, PART))
    assert list(prepare.parts) == [0, 1]
