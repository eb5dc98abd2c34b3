"""A coordinator listens where it is told to, and nowhere else."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_coordinator_without_an_address_does_not_start(tmp_path):
    options = ["--run-dir", str(tmp_path), "--attempt", "0a", "--parent", str(os.getpid())]
    control = [sys.executable, "-m", "holdfast.launch.control"]
    command = [*control, "holdfast.coordinator.main", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--address" in done.stderr
    assert list(tmp_path.iterdir()) == []
