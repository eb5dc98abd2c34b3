"""A run is copied while it trains, and the newest of it once it has ended."""

import errno
import shutil

import pytest

from backups import FakeRun
from checkpoints import layout_of
from conftest import change_last_byte, events_of
from holdfast.checkpoint.remote.backup import Backup, step_of
from holdfast.checkpoint.remote.open import open_store


@pytest.fixture
def fake(tmp_path):
    """Make a run: `fake(key=value, …) -> FakeRun`."""
    return lambda **keys: FakeRun(tmp_path / "run", tmp_path / "second", **keys)


def steps_in(tmp_path):
    """The steps in the backup, newest first."""
    [run] = (tmp_path / "second").iterdir()
    return [step_of(folder) for folder in Backup(open_store(str(run), {})).whole()]


def completed(run):
    return [event["step"] for event in events_of(run.path, "backup-completed")]


def test_each_checkpoint_is_copied_and_old_copies_are_deleted(fake, tmp_path):
    run = fake(backup={"keep": 2})
    assert run.copied_while(*(lambda step=step: run.save(step) for step in (10, 20, 30)))
    assert completed(run) == [10, 20, 30]
    assert steps_in(tmp_path) == [30, 20]
    [event, *_] = events_of(run.path, "backup-completed")
    assert event["url"] == str(tmp_path / "second" / run.copy)
    assert event["bytes"] > 0
    assert event["seconds"] >= 0


def test_job_code_and_logs_are_copied_too(fake, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def main(session): ...\n")
    run = fake(task=f"{tmp_path}/code/mine.py:main", data=None, model=None)
    run.copied_while(lambda: run.save(10))
    copy = tmp_path / "second" / run.copy
    assert (copy / "job.yaml").read_text() == (run.path / "job.yaml").read_text()
    assert (copy / "run.id").read_text() == (run.path / "run.id").read_text()
    assert (copy / "code.zip").stat().st_size > 0
    for log in ("metrics.jsonl", "events.jsonl"):
        assert (copy / log / "000000").read_bytes() == (run.path / log).read_bytes()


def test_a_store_that_was_emptied_gets_all_of_the_run_again(fake, tmp_path):
    run = fake()
    copy = tmp_path / "second" / run.copy

    def empty_and_save():
        shutil.rmtree(copy)
        run.save(20)

    assert run.copied_while(lambda: run.save(10), empty_and_save)
    assert completed(run) == [10, 20]
    assert (copy / "job.yaml").exists()
    assert (copy / "run.id").exists()
    assert steps_in(tmp_path) == [20]
    for log in ("metrics.jsonl", "events.jsonl"):
        assert (copy / log / "000000").read_bytes() == (run.path / log).read_bytes()


def test_every_nth_checkpoint_is_copied_and_the_last_one(fake, tmp_path):
    run = fake(backup={"every": 2, "keep": 9})
    run.copied_while(*(lambda step=step: run.save(step) for step in (10, 20, 30, 40, 50)))
    assert completed(run) == [20, 40, 50]


def test_copies_are_so_many_seconds_apart_except_the_last_one(fake):
    run = fake(backup={"every_s": 1000.0})
    run.copied_while(*(lambda step=step: run.save(step) for step in (10, 20, 30)))
    assert completed(run) == [10, 30]


def test_what_is_there_already_is_not_copied_again(fake):
    run = fake()
    run.copied_while(lambda: run.save(10))
    run.copied_while()
    assert completed(run) == [10]
    run.copied_while(lambda: run.save(20))
    assert completed(run) == [10, 20]


def test_a_step_that_was_computed_again_with_another_result_is_copied_again(fake, tmp_path):
    run = fake()
    run.copied_while(lambda: run.save(10), lambda: run.save(10, seed=3))
    assert completed(run) == [10, 10]
    assert steps_in(tmp_path) == [10, 10]


def test_the_best_checkpoint_is_copied_before_the_newest_and_is_kept(fake, tmp_path):
    run = fake(backup={"keep": 1, "every": 3})
    run.copied_while(
        lambda: run.save(10, best=10),
        lambda: run.save(20, best=10),
        lambda: run.save(30, best=10),
        lambda: run.save(40, best=10),
    )
    assert completed(run) == [10, 30, 40]
    assert steps_in(tmp_path) == [40, 10]


def test_a_damaged_checkpoint_is_passed_by_and_reported_once(fake, tmp_path):
    run = fake()

    def save_damaged():
        part = run.save(20) / "part-1-of-2.safetensors"
        change_last_byte(part)

    run.copied_while(lambda: run.save(10), save_damaged, lambda: None, lambda: None)
    assert completed(run) == [10]
    [failed] = events_of(run.path, "backup-failed")
    assert "part-1-of-2.safetensors: chunk 0 of the state does not match" in failed["reason"]


def test_a_checkpoint_that_retention_deletes_is_not_missed(fake, tmp_path):
    run = fake()
    run.save(10)

    def told(progress):
        shutil.rmtree(run.path / "checkpoints" / "step-00000020", ignore_errors=True)

    assert run.copied_while(lambda: run.save(20), told=told)
    assert completed(run) == [10]
    assert not events_of(run.path, "backup-failed")


class Broken:
    """A store that fails so many times."""

    def __init__(self, objects, error, times):
        self.url, self._objects, self._error, self._left = objects.url, objects, error, times

    def put(self, name, data, *, new=False):
        self._left -= 1
        if self._left >= 0:
            raise self._error
        return self._objects.put(name, data, new=new)

    def __getattr__(self, name):
        return getattr(self._objects, name)


def broken(tmp_path, run, error, times):
    opened = open_store(str(tmp_path / "second" / run.copy), {})
    return Broken(opened, error, times)


def test_an_outage_is_reported_once_and_made_up_for(fake, tmp_path):
    run = fake()
    error = OSError(errno.ETIMEDOUT, "no answer")
    objects = broken(tmp_path, run, error, 12)
    happens = [lambda step=step: run.save(step) for step in range(10, 200, 10)]
    assert run.copied_while(*happens, objects=objects)
    [failed] = events_of(run.path, "backup-failed")
    assert "no answer" in failed["reason"]
    assert completed(run)[-1] == 190
    assert steps_in(tmp_path)[0] == 190
    assert any(progress.trouble for progress in run.told)


def test_a_store_that_refuses_does_not_hold_up_the_end_of_a_run(fake, tmp_path):
    run = fake()
    objects = broken(tmp_path, run, PermissionError("AccessDenied"), 10**9)
    assert not run.copied_while(lambda: run.save(10), objects=objects)
    assert [each["reason"] for each in events_of(run.path, "backup-failed")] == ["AccessDenied"]


def test_a_run_that_has_ended_does_not_finish_an_older_copy(fake, tmp_path):
    run, wide = fake(), layout_of(5000)
    run.save(10, layout=wide)

    def told(progress):
        if progress.step == 10 and progress.done_bytes:
            run.save(20)

    run.copied_while(lambda: None, told=told)
    assert completed(run) == [20]
    assert steps_in(tmp_path) == [20]


def test_what_comes_after_the_run_directory_was_deleted_is_copied_too(fake, tmp_path):
    run, seen = fake(), []

    def look():
        seen.append(steps_in(tmp_path))

    run.copied_while(
        lambda: run.save(10), lambda: shutil.rmtree(run.path), look, lambda: run.save(20), look
    )
    assert seen == [[10], [20, 10]]


def test_a_log_is_copied_in_segments(fake, tmp_path):
    run, text = fake(), bytes(range(1, 256)) * 140_000
    (run.path / "metrics.jsonl").write_bytes(text)
    run.copied_while()
    segments = sorted((tmp_path / "second" / run.copy / "metrics.jsonl").iterdir())
    assert [path.name for path in segments] == ["000000", "000001", "000002"]
    assert b"".join(path.read_bytes() for path in segments) == text
