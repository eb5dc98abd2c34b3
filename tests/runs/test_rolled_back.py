"""A run is not resumed silently from an older checkpoint than its record names."""

import shutil

import pytest

from checkpoints import layout_of, save, state_of, store_in
from holdfast.api.attended import accept_older_checkpoint, check_newest
from holdfast.errors import JobError
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS

LAYOUT = layout_of(width=4)


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints of steps 10 and 20."""
    with EventLog(tmp_path / EVENTS) as log:
        log.event("generation-started", step=0)
        for step in (10, 20):
            commit(tmp_path, log, step)
    return tmp_path


def commit(run, log, step, **where):
    directory = save(run / "checkpoints", step, state_of(LAYOUT), LAYOUT)
    log.event("checkpoint-committed", step=step, directory=str(directory), **where)


def lose(run, *steps):
    for step in steps:
        shutil.rmtree(run / "checkpoints" / f"step-{step:08}")


def note(run, event, **fields):
    with EventLog(run / EVENTS) as log:
        log.event(event, **fields)


def test_a_run_that_has_its_newest_checkpoint_is_resumed(run):
    check_newest(run)
    lose(run, 10)
    check_newest(run)
    (run / "checkpoints" / "step-00000020" / "manifest.json").unlink()
    check_newest(run)  # damage is found by the workers


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ((20,), r"lost the checkpoint of step 20, .*newest one is of step 10 now\. .*resume from"),
        (
            (10, 20),
            r"lost the checkpoint of step 20, .*it has none now\. .*or begin from nothing: ",
        ),
    ],
)
def test_a_lost_checkpoint_is_named_with_what_to_do(run, lost, message):
    lose(run, *lost)
    with pytest.raises(JobError, match=rf"{message}.*--accept-older") as refused:
        check_newest(run)
    assert str(run / "checkpoints" / "step-00000020") in str(refused.value)


@pytest.mark.parametrize("suffix", [".rejected-1", ".rejected-12", ".0.tmp", ".1.tmp"])
def test_quarantine_and_what_a_crash_interrupted_are_no_loss(run, suffix):
    directory = run / "checkpoints" / "step-00000020"
    directory.rename(directory.with_name(directory.name + suffix))
    check_newest(run)


@pytest.mark.parametrize("event", ["checkpoint-corrupt", "checkpoint-rejected"])
def test_a_quarantined_checkpoint_may_be_removed(run, event):
    directory = run / "checkpoints" / "step-00000020"
    shutil.rmtree(directory)
    note(run, event, step=20, directory=str(directory))
    check_newest(run)


def test_a_draft_is_no_checkpoint(run):
    lose(run, 20)
    (run / "checkpoints" / "step-00000020.0a00000001.tmp").mkdir()
    with pytest.raises(JobError, match="step 20"):
        check_newest(run)


def test_what_was_accepted_once_stays_accepted(run):
    lose(run, 20)
    note(run, "generation-started", step=10)
    check_newest(run)
    with EventLog(run / EVENTS) as log:
        commit(run, log, 15)
    lose(run, 15)
    with pytest.raises(JobError, match="the checkpoint of step 15"):
        check_newest(run)


def test_what_the_user_has_accepted_is_no_loss(run):
    lose(run, 20)
    accept_older_checkpoint(run)
    check_newest(run)
    lose(run, 10)
    with pytest.raises(JobError, match="the checkpoint of step 10"):
        check_newest(run)
    accept_older_checkpoint(run)
    check_newest(run)


def test_a_storage_that_cannot_be_listed_is_no_loss_either(run):
    (run / "checkpoints").rename(run / "away")
    (run / "checkpoints").symlink_to("checkpoints")
    for check in (check_newest, accept_older_checkpoint):
        with pytest.raises(JobError, match=r"checkpoints cannot be read: .*; make the storage"):
            check(run)


def test_checkpoints_of_other_hosts_do_not_count(run):
    here = str(run / "checkpoints" / "step-00000040")  # that host has a directory of this name
    note(run, "checkpoint-committed", step=40, directory=here, host="b", shipped=True)
    check_newest(run)
    note(run, "checkpoint-committed", step=30, directory="/there/step-00000030", host="b")
    check_newest(run)
    with EventLog(run / EVENTS) as log:
        commit(run, log, 30, host="a")
    lose(run, 30)
    with pytest.raises(JobError, match="step 30"):
        check_newest(run)


def test_a_copy_that_was_collected_counts(run):
    note(run, "checkpoint-collected", step=30, directory="/anywhere", sender="b")
    with pytest.raises(JobError, match="step 30"):
        check_newest(run)


def test_a_run_that_was_moved_still_has_its_checkpoints(run, tmp_path):
    moved = shutil.move(run, tmp_path.with_name("moved"))
    check_newest(moved)
    shutil.rmtree(moved / "checkpoints" / "step-00000020")
    with pytest.raises(JobError, match="step 20"):
        check_newest(moved)


def test_a_run_without_a_record_is_resumed(tmp_path):
    check_newest(tmp_path)
    save(tmp_path / "checkpoints", 3, state_of(LAYOUT), LAYOUT)
    (tmp_path / EVENTS).write_text(
        '{"event": "checkpoint-committed", "step": 7}\n{"event": "checkpoint-corrupt"}\n[1]\n{torn'
    )
    check_newest(tmp_path)
    assert store_in(tmp_path / "checkpoints").committed() == ["step-00000003"]
