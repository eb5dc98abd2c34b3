"""Which code a run executes is found once, from git and from the file of the task."""

import subprocess

import pytest

from holdfast.core.code_version import UNKNOWN, CodeVersion, changes
from holdfast.job import load
from holdfast.rundir import code_version
from holdfast.rundir.run_directory import CODE_VERSION


def git(folder, *words):
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A task in a folder of its own, which is no repository yet."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "task.py").write_text("def main(session): ...\n")
    return folder / "task.py"


def file_of(task):
    return load.check({"task": f"{task}:main"}, where="test").code_file


def test_without_a_repository_only_the_file_is_known(task):
    found = code_version.find(file_of(task))
    assert (found.commit, found.is_modified) == (None, False)
    task.write_text("def main(session): pass\n")
    differ = changes(found, code_version.find(file_of(task)))
    assert differ["before"] == f"a task with SHA-256 {found.task_sha256:.12}"
    assert changes(found, found) == {}


def test_without_git_there_is_no_commit(task, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert code_version.find(file_of(task)).commit is None


def test_a_commit_and_whether_files_differ_from_it(task, tmp_path):
    git(task.parent, "init", "--quiet")
    assert code_version.find(file_of(task)).commit is None  # there is none yet
    git(task.parent, "add", ".")
    git(task.parent, "commit", "--quiet", "-m", "one")
    git(task.parent, "tag", "-am", "not shown", "v1")
    commit = git(task.parent, "rev-parse", "HEAD")
    first = code_version.find(file_of(task))
    assert (first.commit, first.is_modified) == (commit, False)
    (task.parent / "notes.txt").write_text("no file of the repository")
    assert code_version.find(file_of(task)) == first
    task.write_text("def main(session): pass\n")
    second = code_version.find(file_of(task))
    assert changes(first, second) == {
        "before": f"commit {commit:.12}",
        "now": f"commit {commit:.12} with changes",
    }
    assert changes(first, UNKNOWN) == changes(UNKNOWN, second) == {}
    code_version.keep(tmp_path, second)
    assert code_version.kept(tmp_path) == second


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"commit": 1}'])
def test_what_was_not_kept_is_unknown(tmp_path, content):
    if content is not None:
        (tmp_path / CODE_VERSION).write_bytes(content)
    assert code_version.kept(tmp_path) == CodeVersion()


def test_a_job_without_code_of_its_own_has_the_commit_of_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    script = load.check_script({"script": {"module": "timeit"}}, where="test")
    for job in (load.load("digits").resolved(), script):
        assert code_version.find(job.code_file) == UNKNOWN
