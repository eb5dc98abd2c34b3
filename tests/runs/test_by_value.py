"""Tasks that no other process can import: closures, partials, programs on standard input."""

import functools
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

import holdfast
from conftest import sampled
from holdfast.errors import JobError
from holdfast.tasks import by_value

pytestmark = pytest.mark.slow

JOB = {"batch": 20, "shards": 4, "workers": 2}


def task_of(width, captured=None):
    """A closure that trains; its second parameter is for a partial."""

    def main(session, rate=0.1):
        x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
        data = torch.utils.data.TensorDataset(x, x.argmax(1))
        model, _ = session.attach(
            lambda: torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 4)),
            lambda p: torch.optim.SGD(p, lr=rate),
        )
        for shard in session.shards(data, epochs=2):
            session.backward(F.cross_entropy(model(shard.x), shard.y))
        return captured

    return main


@pytest.mark.soak
def test_closures_and_partials_train_and_resume(tmp_path):
    kept = []
    first = holdfast.train(
        task_of(5),
        JOB,
        run_dir=tmp_path / "run",
        on_event=lambda _: kept.append((tmp_path / "run" / "code.py").exists()),
    )
    assert first.steps == 8
    assert all(kept), "a run that fails would leave no source"
    assert "def main(session, rate=0.1):" in (tmp_path / "run" / "code.py").read_text()
    resumed = holdfast.train(task_of(5), JOB, run_dir=tmp_path / "run", resume=True)
    assert resumed.weights_sha256 == first.weights_sha256
    partial = functools.partial(task_of(5), rate=0.2)
    other = holdfast.train(partial, JOB | {"workers": 1}, run_dir=tmp_path / "partial")
    assert other.weights_sha256 != first.weights_sha256
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "train", tmp_path / "run" / "job.yaml",
         "--run", tmp_path / "run", "--resume"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "task by value: main exists in the process that started the run only" in done.stderr


def test_data_are_refused_by_name():
    large = torch.zeros(500_000)
    with pytest.raises(JobError, match=r"main uses captured \(2,0.* bytes\), and data do not trav"):
        by_value.pack(task_of(5, large))
    with pytest.raises(JobError, match=r"uses rate \(2,0.* bytes\)"):
        by_value.pack(functools.partial(task_of(5), rate=large))
    with pytest.raises(JobError, match="main cannot be sent to other processes: TypeError"):
        by_value.pack(task_of(5, captured=threading.Lock()))


PROGRAM = """
import torch, torch.nn.functional as F, holdfast
x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
def main(session):
    model, _ = session.attach(lambda: torch.nn.Linear(4, 4), lambda p: torch.optim.SGD(p, lr=0.1))
    data = torch.utils.data.TensorDataset(x, x.argmax(1))
    for shard in session.shards(data, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))

print("steps:", holdfast.train(main, {"workers": 2, "batch": 10}).steps)
"""


@pytest.mark.parametrize("arguments", sampled([["-"], ["-i"]], 0))
@pytest.mark.full
def test_a_program_on_standard_input_trains(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, *arguments], input=PROGRAM, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "steps: 8" in done.stdout, done.stderr


@pytest.mark.soak
def test_a_missing_main_guard_is_named(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "program.py starts a run while it is imported" in done.stderr.splitlines()[-1]
    assert 'under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.mark.soak
def test_ctrl_c_raises_once_the_run_is_saved(tmp_path):
    def interrupt(event):
        if event.kind == "step":
            os.kill(os.getpid(), signal.SIGINT)

    keys = {"epochs": 500, "workers": 2}
    with pytest.raises(KeyboardInterrupt, match=r"stopped after step \d+; resume=True continues"):
        holdfast.train("digits", keys, run_dir=tmp_path / "run", on_event=once(interrupt))
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


def once(function):
    """Call `function` with the first step only."""
    seen = []

    def call(event):
        if event.kind == "step" and not seen:
            seen.append(event)
            function(event)

    return call
