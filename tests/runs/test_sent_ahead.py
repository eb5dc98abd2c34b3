"""Gradients that hosts send each other while autograd computes the others have the bits of one
host.
"""

import json
from pathlib import Path

import pytest

from conftest import events_of, own_loopback_address, wait_until

pytestmark = pytest.mark.slow

TASK = f"{Path(__file__).with_name('sent_ahead_tasks.py')}:main"
JOB = [TASK, "batch=16", "shards=4"]


def weights_of(run):
    return json.loads((run / "result.json").read_text())["weights_sha256"]


def test_gradients_that_change_or_come_late_have_the_bits_of_one_host(command, tmp_path):
    address = own_loopback_address()
    where = ["--hosts", "2", "--address", address, "--run", "run"]
    first = command("coordinator", *JOB, "workers=2", *where)
    token = tmp_path / "run" / "secrets" / "join.token"
    wait_until(token.exists)
    join = ["agent", "--join", f"{address}:50051", "--token-file", token, "--run", "host-2"]
    second = command(*join)
    assert command("train", *JOB, "--run", "alone").wait(120) == 0
    assert [each.wait(120) for each in (first, second)] == [0, 0]
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "alone")
    assert not events_of(tmp_path / "run", "worker-exited")
