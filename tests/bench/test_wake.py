"""The benchmark measures what it says; the figures themselves are not for tests."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_every_kind_of_wait_is_ended_by_the_abort_word():
    command = [sys.executable, "-m", "holdfast", "bench", "wake", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    found = json.loads(done.stdout)
    for wait in ("barrier", "samples", "checkpoint"):
        assert 0 < found[wait]["median_ms"] <= found[wait]["max_ms"]
