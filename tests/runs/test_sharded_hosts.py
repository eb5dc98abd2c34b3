"""A model whose rows are divided over the workers of several hosts."""

import json
import os
import signal

import pytest

from conftest import events_of, own_loopback_address, wait_until

JOB = ["digits", "epochs=3", "shards=4", "checkpoint.every_steps=10"]


@pytest.mark.full
def test_every_host_has_whole_checkpoints_and_a_lost_one_does_not_show(command, tmp_path):
    assert command("train", *JOB, "workers=1", "--run", "alone").wait(120) == 0
    address = own_loopback_address()
    where = ["--hosts", 2, "--address", address, "--run", "run"]
    first = command("coordinator", *JOB, "workers=2", "parallel.zero=3", *where)
    token = tmp_path / "run" / "secrets" / "join.token"
    wait_until(token.exists)
    join = ["agent", "--join", f"{address}:50051", "--token-file", token]
    lost = command(*join, "--run", "host-2")
    wait_until(lambda: events_of(tmp_path / "run", "checkpoint-committed"))
    os.killpg(lost.pid, signal.SIGKILL)
    wait_until(lambda: events_of(tmp_path / "run", "host-lost"))
    # A new host, which has no checkpoint: it gets one that is whole.
    assert command("token", "run").wait(60) == 0
    other = command(*join, "--run", "host-3")
    assert first.wait(180) == 0
    assert other.wait(60) == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")
    last = [
        max(each.name for each in (tmp_path / host / "checkpoints").glob("step-*"))
        for host in ("run", "host-3")
    ]
    assert last[0] == last[1]


def weights(run_dir):
    return json.loads((run_dir / "result.json").read_text())["weights_sha256"]
