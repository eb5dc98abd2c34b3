"""What a job may set in the environment of its workers, and that they get that and no more."""

import subprocess
import sys

import pytest

from conftest import printed
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.environment_names import TAKEN
from holdfast.job.settings import PINNED
from holdfast.launch import environment


def with_env(**env):
    return load.check({"env": env, "data": {"name": "digits"}}, where="test")


def refused(**env):
    with pytest.raises(JobError) as raised:
        with_env(**env)
    return str(raised.value)


def test_numbers_become_text():
    assert with_env(NCCL_IB_DISABLE=1, MINE="x").env == {"NCCL_IB_DISABLE": "1", "MINE": "x"}


def test_an_override_sets_one_variable():
    job = load.load("digits", ["env.NCCL_DEBUG=INFO", "env.GLOO_LOG_LEVEL=WARN"])
    assert job.env == {"NCCL_DEBUG": "INFO", "GLOO_LOG_LEVEL": "WARN"}


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_run_sets_itself_is_refused(name):
    assert f"{name} is not the job's to set" in refused(**{name: "1"})


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "NCCL_PSK"]
)
def test_a_secret_is_refused_without_its_value(name):
    message = refused(**{name: "hunter2"})
    assert f"{name} looks like a secret" in message
    assert "hunter2" not in message
    with pytest.raises(JobError) as raised:
        load.load("digits", [f"env.{name}=hunter2"])
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "NCCL_IB_PKEY"])
def test_what_only_resembles_a_secret_is_accepted(name):
    assert with_env(**{name: "1"}).env == {name: "1"}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"A B": "x"}, "'A B' is no name of a variable"),
        ({"A": True}, "A should be text or a number"),
        ({"A": ["x"]}, "A should be text or a number"),
        ({"A": "x\0y"}, "A contains a null character"),
    ],
)
def test_what_the_kernel_would_not_take_is_refused(env, words):
    assert words in refused(**env)


def test_portable_numerics_keep_their_variables():
    env = {"ATEN_CPU_CAPABILITY": "avx512"}
    with pytest.raises(JobError, match="portable sets ATEN_CPU_CAPABILITY itself"):
        load.check({"numerics": "portable", "env": env}, where="test")
    job = load.check({"numerics": "portable", "env": {"MINE": "x"}}, where="test")
    assert job.library_variables == {"MINE": "x", **PINNED}


def test_variables_of_libraries_come_from_the_job_alone():
    shell = {
        "NCCL_DEBUG": "INFO",
        "GLOO_LOG_LEVEL": "INFO",
        "NCCL_VERSION": "2.28",
        "HOME": "/root",
    }
    assert environment.inherited(shell) == {"HOME": "/root"}
    assert environment.left_out(shell, {"NCCL_DEBUG": "WARN"}) == ["GLOO_LOG_LEVEL"]


SHOWN = "print([os.environ.get(name) for name in ('NCCL_DEBUG', 'NCCL_ALGO', 'MINE')])"
TASK = f"""
import os

import torch
from torch import nn

{SHOWN}


def main(session):
    model, _ = session.attach(lambda: nn.Linear(2, 1), lambda p: torch.optim.SGD(p, lr=0.1))
    {SHOWN}
    for (x,) in session.shards(torch.utils.data.TensorDataset(torch.ones(4, 2)), epochs=1):
        session.backward(model(x).mean())
"""


@pytest.fixture
def holdfast(tmp_path, monkeypatch):
    """Run a command in `tmp_path`, from a shell with variables of NCCL."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.chdir(tmp_path)

    def run(command, *words):
        line = [sys.executable, "-m", "holdfast", command, "--run", "run", *words]
        return subprocess.run(line, check=True, capture_output=True, timeout=120)

    return run


@pytest.mark.slow
def test_workers_get_what_the_job_says(tmp_path, holdfast):
    (tmp_path / "mine.py").write_text(TASK)
    done = holdfast("train", "mine.py:main", "env.NCCL_DEBUG=WARN", "env.MINE=x")
    assert b"workers do not get NCCL_ALGO of this shell" in done.stderr
    lines = printed(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("[")][-1] == "['WARN', None, 'x']"


@pytest.mark.slow
@pytest.mark.soak
def test_scripts_get_what_the_shell_says(tmp_path, holdfast):
    (tmp_path / "script.py").write_text(f"import os\n{SHOWN}\n")
    holdfast("run", "script.py")
    assert "['INFO', 'Ring', None]" in printed(tmp_path)


@pytest.mark.slow
@pytest.mark.soak
def test_a_job_with_a_script_sets_variables_over_those_of_the_shell(tmp_path, monkeypatch, run):
    monkeypatch.setenv("MINE", "of the shell")
    run(f"import os\n{SHOWN}\n", workers=1, env={"NCCL_DEBUG": "WARN", "MINE": "x"})
    assert "['WARN', None, 'x']" in printed(tmp_path)
