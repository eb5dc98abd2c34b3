"""`holdfast run` and `sync: ddp` on several hosts, which are agents on one machine here."""

import json
import os
import signal
from pathlib import Path

import pytest

from conftest import events_of, metrics_of, own_loopback_address, sampled, wait_until

pytestmark = pytest.mark.slow

TRAIN = Path(__file__).parent / "scripts" / "train.py"


@pytest.fixture
def begin(command, tmp_path):
    """Begin a run on hosts: `begin(hosts, word, …) -> (coordinator, agents)`."""

    def run(hosts, *words):
        address = own_loopback_address()
        where = ["--address", address, "--run", "run"]
        first = command(words[0], *where, *words[1:])
        token = tmp_path / "run" / "secrets" / "join.token"
        wait_until(token.exists)
        join = ["agent", "--join", f"{address}:50051", "--token-file", token]
        return first, [command(*join) for _ in range(hosts - 1)]

    return run


def weights(tmp_path):
    return (tmp_path / "weights").read_text()


@pytest.mark.parametrize("network", sampled(["tls", "trusted"], 0))
def test_a_script_on_two_hosts_ends_as_on_one_though_a_worker_is_killed(
    begin, command, tmp_path, network
):
    first, agents = begin(
        2, "run", "--nnodes", 2, "--network", network, "--nproc-per-node", 1,
        TRAIN, tmp_path, "--fault", "kill@1",
    )  # fmt: skip
    assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
    assert [each.wait(60) for each in agents] == [0]
    assert "goes on from step 10" in (tmp_path / "output-0").read_text()
    on_two = weights(tmp_path)
    assert metrics_of(tmp_path / "run")[-1]["step"] >= 30
    (tmp_path / "checkpoint.pt").unlink()
    assert command("run", "--workers", 2, TRAIN, tmp_path).wait(120) == 0
    assert weights(tmp_path) == on_two


@pytest.mark.soak
def test_a_job_with_ddp_on_two_hosts_continues_from_its_checkpoint(begin, command, tmp_path):
    job = ["digits", "network=tls", "shards=8", "workers=2", "sync=ddp", "epochs=20"]
    job += ["checkpoint.every_steps=10"]
    first, agents = begin(2, "coordinator", *job, "--hosts", 2)
    wait_until((tmp_path / "run" / "events.jsonl").exists)
    wait_until(lambda: events_of(tmp_path / "run", "checkpoint-committed"))
    pids = lambda: {e["rank"]: e["pid"] for e in events_of(tmp_path / "run", "worker-started")}  # noqa: E731
    wait_until(lambda: 1 in pids())
    os.kill(pids()[1], signal.SIGKILL)
    assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
    assert [each.wait(60) for each in agents] == [0]
    assert command("train", *job, "--run", "alone").wait(120) == 0
    several, alone = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "alone")
    )
    assert several["weights_sha256"] == alone["weights_sha256"]
    again = events_of(tmp_path / "run", "generation-started")[-1]
    assert again["from_checkpoint"]
    assert again["checkpoint"]
