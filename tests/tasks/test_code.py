"""The sources of a task travel whole and bounded, and nothing lands outside of their folder."""

import io
import sys
import zipfile

import pytest

from holdfast.errors import JobError, ProtocolError
from holdfast.tasks import code, reference


@pytest.fixture
def project(tmp_path):
    """A folder with a task, what it imports, and what must stay at home."""
    root = tmp_path / "project"
    for name in ("mine.py", "inner/deep.py", "data.bin", ".venv/hidden.py", "env/pyvenv.cfg",
                 "env/lib.py", "runs/old/events.jsonl", "runs/old/code/mine.py",
                 "__pycache__/mine.py"):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def main(session): pass\n")
    return root


def names(packed):
    return zipfile.ZipFile(io.BytesIO(packed)).namelist()


def test_the_sources_below_the_folder_of_a_task_are_packed(project, tmp_path):
    packed = code.pack(f"{project}/mine.py:main", tmp_path)
    assert names(packed) == ["mine.py", "inner/deep.py"]
    (project / "mine.py").touch()
    assert code.pack(f"{project}/mine.py:main", tmp_path) == packed, "whatever the clock"


def test_a_package_is_packed_with_its_name_and_an_installed_one_is_not(
    project, tmp_path, monkeypatch
):
    monkeypatch.chdir(project)
    assert names(code.pack("inner.deep:main", tmp_path)) == ["inner/deep.py"]
    assert names(code.pack("mine:main", tmp_path)) == ["mine.py"]
    assert code.pack("torch.nn:Linear", tmp_path) == b""
    assert code.pack("classification", tmp_path) == b""
    assert code.pack("json:loads", tmp_path) == b""
    assert code.pack("holdfast_bench.emulate.task:EmulatedTask", tmp_path) == b""


@pytest.mark.parametrize("task", ["mine.py:main", "/elsewhere/mine.py:main", "inner.deep:main"])
def test_a_host_runs_the_code_that_it_has_got(project, tmp_path, monkeypatch, task):
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    assert code.located(task, run_dir) == task
    folder = project if task.startswith("/") else None
    packed = code.pack(f"{folder}/mine.py:main" if folder else task, run_dir)
    code.unpack(packed, run_dir)
    monkeypatch.chdir(tmp_path)
    (project / "mine.py").unlink()
    found = reference.load(code.located(task, run_dir))
    assert found.__code__.co_filename.startswith(str(run_dir / "code"))
    assert names(code.pack(task, run_dir)) == names(packed), "and gives it to others"
    code.unpack(b"", run_dir)
    assert not (run_dir / "code").exists(), "what an older start has sent is gone"


def archive(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return packed.getvalue()


@pytest.mark.parametrize(
    "packed",
    [
        archive(**{"../mine.py": b""}),
        archive(**{"/etc/mine.py": b""}),
        archive(**{"a/../../mine.py": b""}),
        archive(**{"mine.so": b""}),
        archive(**{"mine.py": bytes(code.MAX_BYTES + 1)}),
        b"no archive",
    ],
)
def test_what_must_not_be_unpacked_is_refused(tmp_path, packed):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with pytest.raises(ProtocolError, match="the coordinator sent"):
        code.unpack(packed, run_dir)
    assert list(tmp_path.rglob("*.py")) == []


def test_too_much_code_is_refused_with_advice(project, tmp_path, monkeypatch):
    monkeypatch.setattr(code, "MAX_BYTES", 10)
    with pytest.raises(JobError, match="put the task in a folder of its own"):
        code.pack(f"{project}/mine.py:main", tmp_path)


def test_code_that_exists_in_one_process_only_is_refused(tmp_path):
    with pytest.raises(JobError, match=r"name it as path/to/file\.py:name"):
        code.pack("by value: main", tmp_path)
