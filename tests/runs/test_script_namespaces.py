"""`holdfast run` on hosts with networks of their own: what a script finds, and how it goes on."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from conftest import events_of, wait_until
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.soak]

TRAIN = Path(__file__).parent / "scripts" / "train.py"
TELLS = """
import json, os, sys
open(sys.argv[1] + os.environ["RANK"], "w").write(json.dumps(dict(os.environ)))
"""


@pytest.fixture
def begin(tmp_path):
    """Begin a script on hosts: `begin(hosts, count, word, …) -> (coordinator, agents)`."""

    def run(hosts, count, *words):
        shared = tmp_path / "shared"
        shared.mkdir(exist_ok=True)
        where = ["--nnodes", count, "--address", hosts.address(1), "--run", shared / "run"]
        first = hosts.start(1, "run", *where, *words)
        token = shared / "run" / "secrets" / "join.token"
        wait_until(token.exists)
        join = ["agent", "--join", f"{hosts.address(1)}:50051", "--token-file", token]
        return first, [hosts.start(number, *join) for number in hosts.numbers[1:]]

    return run


def test_a_script_finds_what_torchrun_would_give_it_on_each_host(begin, tmp_path):
    script, theirs, ours = tmp_path / "tells.py", {}, {}
    script.write_text(TELLS)
    with namespaces(tmp_path, 2) as hosts:
        nodes = [
            hosts.run(
                number, sys.executable, "-m", "torch.distributed.run", "--nnodes", 2,
                "--nproc-per-node", 2, "--rdzv-backend", "c10d",
                "--rdzv-endpoint", f"{hosts.address(1)}:29500", script, tmp_path / "torchrun-",
            )
            for number in hosts.numbers
        ]  # fmt: skip
        assert [node.wait(60) for node in nodes] == [0, 0]
        first, agents = begin(
            hosts, 2, "--network", "trusted", "--nproc-per-node", 2, "--master-port", 29500,
            script, tmp_path / "holdfast-",
        )  # fmt: skip
        assert [each.wait(60) for each in (first, *agents)] == [0, 0], hosts.output(1)
        addresses = {hosts.address(number) for number in hosts.numbers}
    for rank in range(4):
        theirs, ours = (
            json.loads((tmp_path / f"{name}-{rank}").read_text())
            for name in ("torchrun", "holdfast")
        )
        assert ours.pop("MASTER_ADDR") in addresses
        assert ours.pop("MASTER_PORT") == "29500"
        assert [ours.pop(f"{name}_SOCKET_IFNAME") for name in ("GLOO", "NCCL")] == ["eth0", "eth0"]
        assert ours.pop("HOLDFAST_RUN_DIR")
        for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_SIGNALS_TO_HANDLE"):
            assert theirs.pop(name)
        for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"):
            assert all(told.pop(name) for told in (theirs, ours))
        assert ours == theirs


def lose_worker(_hosts, _run_dir):
    """The script kills it."""


def lose_agent(_hosts, run_dir):
    (agent,) = [e for e in events_of(run_dir, "agent-started") if e["host"].startswith("h2-")]
    os.kill(agent["pid"], signal.SIGKILL)


def cut_host(hosts, run_dir):
    hosts.cut(2)
    members = lambda: len(events_of(run_dir, "worker-started"))  # noqa: E731
    before = members()
    wait_until(lambda: members() > before)  # the others were started again without it
    hosts.heal(2)


def saved(folder):
    """The step of the newest checkpoint of the script; 0 if there is none."""
    path = folder / "checkpoint.pt"
    return torch.load(path)["step"] if path.exists() else 0


@pytest.mark.parametrize(
    ("fault", "inject"),
    [("kill@3", lose_worker), ("sleep@3", lose_agent), ("sleep@3", cut_host)],
    ids=["worker", "agent", "host"],
)
def test_a_script_on_three_hosts_restarts_unattended(begin, tmp_path, fault, inject):
    work = tmp_path / "work"
    work.mkdir()
    with namespaces(tmp_path, 3) as hosts:
        script = ["--nproc-per-node", 2, TRAIN, work]
        first, agents = begin(hosts, 3, *script, "--fault", fault)
        wait_until(lambda: saved(work) >= 10)
        inject(hosts, tmp_path / "shared" / "run")
        assert first.wait(120) == 0, hosts.output(1)
        assert [agent.wait(60) for agent in agents] == [0, 0], hosts.output(2)
        several = (work / "weights").read_text()
        assert "goes on from step 10" in hosts.output(1)
        (work / "checkpoint.pt").unlink()
        alone = hosts.start(1, "run", "--workers", 6, TRAIN, work, "--fault", "kill@3")
        assert alone.wait(120) == 0  # the restart too shows in the bits: DDP sorts its buckets then
    assert (work / "weights").read_text() == several
