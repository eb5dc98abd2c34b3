"""`session.steps`: a loop of other code gives the weights of `session.shards`, through a kill."""

from pathlib import Path

import pytest

from conftest import back_to, events_of, printed
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("stepping_tasks.py")
JOB = {"batch": 16, "shards": 4, "checkpoint": {"every_steps": 5}}


@pytest.fixture
def push(train, tmp_path):
    """Train by `session.steps`; returns the digest of the weights."""

    def run(workers, **keys):
        folder = tmp_path / "pauses"
        folder.mkdir(exist_ok=True)
        params = {"folder": str(folder), "mark": str(tmp_path / "mark")}
        options = {"run_dir": tmp_path / f"pushed-{workers}", "resume": keys.pop("resume", False)}
        task = f"{TASKS}:push"
        result = train(task=task, workers=workers, params=params | keys, **options, **JOB)
        return result["weights_sha256"]

    return run


@pytest.fixture
def pulled(train):
    return train(task=f"{TASKS}:pull", workers=2, **JOB)["weights_sha256"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_loop_of_other_code_gives_the_weights_of_ours(push, pulled, tmp_path, workers):
    assert push(workers) == pulled
    lines = [(tmp_path / "pauses" / f"{step}").read_text() for step in range(1, 13)]
    assert all(text.count("\n") == workers for text in lines)
    assert all(len(set(text.splitlines())) == 1 for text in lines)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("step", "after"), [(6, False), (7, True), (8, True), (12, False)])
def test_the_work_of_a_worker_that_is_lost_between_two_steps_is_done_again(
    push, pulled, tmp_path, workers, step, after
):
    assert push(workers, die_in=step, after=after) == pulled
    assert (tmp_path / "mark").exists(), "the worker was not killed"
    # Each worker has written, or the one that took over; but nobody writes to tensors twice.
    least = workers - 1 if step % 4 == 0 else workers
    assert (tmp_path / "pauses" / f"{step}").read_text().count("\n") >= least


def test_a_run_resumes_after_a_pause(push, pulled, tmp_path):
    assert push(2) == pulled
    back_to(tmp_path / "pushed-2", 5)
    assert push(2, resume=True) == pulled


def test_other_code_may_end_the_run(push, tmp_path):
    push(2, end_after=7)
    assert "ended 7" in (tmp_path / "pushed-2" / "logs" / "rank-0.log").read_text()


def test_other_code_sets_keys_of_the_job(train, tmp_path):
    keys = {"batch": 24, "epochs": 2, "shards": 6}
    given = train(task=f"{TASKS}:adopt", workers=2, **keys)
    adopted = train(task=f"{TASKS}:adopt", workers=2, batch=64, epochs=1)
    assert adopted["weights_sha256"] == given["weights_sha256"]
    (event,) = events_of(tmp_path / "run-2", "keys-adopted")
    assert event["keys"] == "batch=24, epochs=2, shards=6"
    with pytest.raises(JobError, match="the job says batch=32, and the code batch=24"):
        train(task=f"{TASKS}:adopt", workers=2, batch=32, epochs=2)


def test_a_file_is_a_program_with_a_command_line_of_its_own(command, tmp_path):
    program = TASKS.with_name("program_task.py")
    run = tmp_path / "run"
    assert command("train", program, "workers=2", "--run", run, "--", "--rate", "0.5").wait() == 0
    assert "rate 0.5" in printed(tmp_path, rank=1)
    (tmp_path / "plain.py").write_text("print('hello')")
    assert command("train", tmp_path / "plain.py", "--run", tmp_path / "none").wait() != 0
    assert 'has nothing under `if __name__ == "__main__":`' in (tmp_path / "output-1").read_text()
