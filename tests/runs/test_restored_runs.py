"""A run directory is made of a backup, or there is none and a message says why."""

import json

import pytest

from backups import FakeRun
from checkpoints import store_in
from conftest import events_of
from holdfast.api.attended import check_newest
from holdfast.errors import CheckpointError, JobError
from holdfast.rundir.run_directory import RunDirectory, run_id_of
from holdfast.sinks.backup.restore import restore
from keys import encryption_key, seal_of, signing_key


@pytest.fixture
def run(tmp_path):
    """A run whose checkpoints of steps 10 and 20 are in a backup."""
    run = FakeRun(tmp_path / "run", tmp_path / "second")
    run.copied_while(lambda: run.save(10), lambda: run.save(20))
    return run


@pytest.fixture
def restored(tmp_path):
    """Restore: `restored(url) -> run directory, lines`; if that fails, nothing is left of it."""
    said, path = [], tmp_path / "restored" / "run"

    def of(url):
        try:
            return restore(str(url), path, {}, said.append), said
        except (JobError, CheckpointError):
            assert [*path.parent.glob("*"), *path.parent.glob(".*")] == []
            raise

    return of


def pieces(tmp_path):
    """The pieces in the backup, oldest checkpoint first."""
    return sorted((tmp_path / "second").rglob("00000000"), key=lambda path: path.parent.name)


def test_a_run_is_restored_with_all_that_it_needs(run, restored, tmp_path):
    path, said = restored(tmp_path / "second" / run.copy)
    assert said == []
    assert run_id_of(path) == run_id_of(run.path)
    for name in ("job.yaml", "metrics.jsonl"):
        assert (path / name).read_bytes() == (run.path / name).read_bytes()
    store = store_in(path / "checkpoints")
    assert store.committed() == ["step-00000020"]
    manifest = store_in(run.path / "checkpoints").manifest("step-00000020")
    assert store.manifest("step-00000020") == manifest
    [event] = events_of(path, "run-restored")
    assert (event["step"], event["url"]) == (20, str(tmp_path / "second" / run.copy))
    with RunDirectory(path, run.job, resume=True):
        pass


def test_the_folder_above_is_enough_if_it_has_one_run(run, restored, tmp_path):
    (tmp_path / "second" / "something-else").mkdir()
    path, _ = restored(tmp_path / "second")
    assert run_id_of(path) == run_id_of(run.path)


def test_a_run_that_has_not_come_to_a_checkpoint_is_no_choice(run, restored, tmp_path):
    failed = FakeRun(tmp_path / "failed", tmp_path / "second")
    failed.copied_while()
    path, _ = restored(tmp_path / "second")
    assert run_id_of(path) == run_id_of(run.path)
    with pytest.raises(CheckpointError, match="has no whole checkpoint"):
        restore(str(tmp_path / "second" / failed.copy), tmp_path / "again", {}, print)


def test_several_runs_are_named(run, restored, tmp_path):
    other = FakeRun(tmp_path / "other", tmp_path / "second")
    other.copied_while(lambda: other.save(10))
    with pytest.raises(JobError, match="has backups of 2 runs; add the name of one") as caught:
        restored(tmp_path / "second")
    assert run.copy in str(caught.value)
    assert other.copy in str(caught.value)


def test_if_the_newest_checkpoint_is_damaged_the_one_before_is_restored(run, restored, tmp_path):
    pieces(tmp_path)[1].write_bytes(b"short")
    path, [said] = restored(tmp_path / "second")
    assert store_in(path / "checkpoints").committed() == ["step-00000010"]
    assert "step-00000020" in said
    assert "has 5 bytes" in said
    check_newest(path)  # the log names the newer one


def test_if_all_checkpoints_are_damaged_nothing_is_restored(run, restored, tmp_path):
    for piece in pieces(tmp_path):
        piece.write_bytes(b"short")
    with pytest.raises(CheckpointError, match="all checkpoints in it are damaged"):
        restored(tmp_path / "second")


def test_a_backup_without_a_whole_checkpoint_is_none(run, restored, tmp_path):
    for manifest in (tmp_path / "second").rglob("manifest.json"):
        manifest.unlink()
    with pytest.raises(CheckpointError, match="it has no whole checkpoint"):
        restored(tmp_path / "second")


def test_the_best_checkpoint_is_restored_too(restored, tmp_path):
    run = FakeRun(tmp_path / "run", tmp_path / "second", backup={"keep": 1})
    run.copied_while(lambda: run.save(10, best=10), lambda: run.save(20, best=10))
    path, said = restored(tmp_path / "second")
    assert store_in(path / "checkpoints").committed() == ["step-00000020", "step-00000010"]
    pieces(tmp_path)[0].write_bytes(b"short")
    again = tmp_path / "again"
    restore(str(tmp_path / "second"), again, {}, said.append)
    assert store_in(again / "checkpoints").committed() == ["step-00000020"]
    assert "the best evaluation is damaged" in said[0]


def test_the_code_of_the_task_is_restored(restored, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def main(session): ...\n")
    task = f"{tmp_path}/code/mine.py:main"
    run = FakeRun(tmp_path / "run", tmp_path / "second", task=task, data=None, model=None)
    run.copied_while(lambda: run.save(10))
    path, _ = restored(tmp_path / "second")
    assert (path / "code" / "mine.py").read_text() == "def main(session): ...\n"
    (tmp_path / "second" / run.copy / "code.zip").write_bytes(b"PK")
    with pytest.raises(JobError, match=r"code\.zip is damaged"):
        restore(str(tmp_path / "second"), tmp_path / "again", {}, print)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("{}/nothing", "has no backup of a run"),
        ("{}/file", "has no backup of a run|Not a directory"),
        ("nothing://there", "is no store for backups"),
        ("file://host/x", "names a host"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(restored, tmp_path, url, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=reason):
        restored(url.format(tmp_path))


def test_a_directory_that_is_not_empty_is_left_alone(run, tmp_path):
    with pytest.raises(JobError, match="is not empty; continue the run in it without --from"):
        restore(str(tmp_path / "second"), run.path, {}, print)
    assert store_in(run.path / "checkpoints").committed()


@pytest.mark.parametrize("text", ["workers: [", "nothing: 1"])
def test_a_job_that_cannot_be_read_is_refused(run, restored, tmp_path, text):
    (tmp_path / "second" / run.copy / "job.yaml").write_text(text)
    with pytest.raises(JobError, match=r"job\.yaml"):
        restored(tmp_path / "second")


def test_what_a_command_that_was_killed_has_left_is_removed(run, restored, tmp_path):
    left = tmp_path / "restored" / ".run.draft" / "checkpoints"
    left.mkdir(parents=True)
    (left / "junk").write_text("")
    path, _ = restored(tmp_path / "second")
    assert not (path / "checkpoints" / "junk").exists()
    assert [each.name for each in path.parent.iterdir()] == ["run"]


def test_sealed_checkpoints_are_copied_as_they_are_and_only_trusted_ones_restored(tmp_path):
    sign, encrypt = signing_key(tmp_path / "sign.pem"), encryption_key(tmp_path / "encrypt.key")
    keys = {"sign": str(sign), "encrypt": str(encrypt)}
    run = FakeRun(tmp_path / "run", tmp_path / "second", checkpoint=keys)
    seal = seal_of(**keys)
    forged = seal_of(sign=signing_key(tmp_path / "other.pem"), encrypt=encrypt)
    run.copied_while(lambda: run.save(10, seal=seal), lambda: run.save(20, seal=forged))
    path, said = tmp_path / "restored", []
    restore(str(tmp_path / "second"), path, {}, said.append)
    assert "only key" in said[0]
    [name] = store_in(path / "checkpoints").committed()
    assert name == "step-00000010"
    for file in (run.path / "checkpoints" / name).iterdir():
        assert (path / "checkpoints" / name / file.name).read_bytes() == file.read_bytes()


def test_a_log_that_was_torn_is_restored_up_to_there(run, restored, tmp_path):
    log = tmp_path / "second" / run.copy / "metrics.jsonl" / "000000"
    log.write_bytes(log.read_bytes()[:-4])
    path, _ = restored(tmp_path / "second")
    first = (path / "metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["step"] == 10
