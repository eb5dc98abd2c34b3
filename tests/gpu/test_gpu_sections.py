"""`tests/gpu/run` stores what became of each check."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_bench.results.result import Result

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    "HOLDFAST_CHECKED_DEVICE" in os.environ, reason="this is a run of it"
)]  # fmt: skip
RUN = Path(__file__).with_name("run")


@pytest.fixture
def checked(tmp_path):
    """Rows that the command stores for a section on a CPU."""

    def run(number):
        words = ["--device", "cpu", "--section", str(number), "--output", str(tmp_path)]
        environment = {**os.environ, "PYTHON": sys.executable}
        environment.pop("PYTEST_XDIST_WORKER", None)  # the command has tests of its own
        done = subprocess.run([RUN, *words], check=False, env=environment, capture_output=True)
        assert done.returncode == 0, done.stdout
        whole, *rows = Result.load(tmp_path / "gpu-checks.json").rows
        assert (whole["section"], whole["outcome"]) == (number, "passed")
        return rows

    return run


@pytest.mark.full
def test_the_outcome_of_every_check_is_stored(checked):
    rows = checked(5)
    assert {row["outcome"] for row in rows} == {"passed"}
    (others,) = [row for row in rows if row["check"].startswith("test_other_operations")]
    assert others["refused"] == ""


@pytest.mark.full
def test_what_needs_cuda_is_skipped_with_the_reason(checked):
    rows = checked(8)
    assert {row["outcome"] for row in rows} == {"skipped"}
    assert {row["reason"] for row in rows} <= {"needs a GPU with CUDA", "needs two GPUs"}


@pytest.mark.full
def test_without_a_gpu_the_command_says_so():
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([RUN], check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("tests/gpu/run: no GPU with CUDA here")
