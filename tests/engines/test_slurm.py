"""Runs inside jobs of a real Slurm: a controller and two nodes on this machine."""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from slurm_cluster import slurm_cluster

from conftest import events_of, holdfast_processes, metrics_of, wait_until
from holdfast.engines.slurm import SlurmEngine
from holdfast.errors import EngineError

PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
MAIN = f"{sys.executable} -m holdfast"


@pytest.fixture(scope="module")
def cluster():
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short enough for a socket's path
    with slurm_cluster(folder) as made:
        yield made
    shutil.rmtree(folder)


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch):
    """Submit the script of the page: `submit(key=value, …) -> job`; nothing is left of it."""
    (script,) = re.findall(r"^```shell\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("HOLDFAST_TEST", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*keys, nodes=2):
        text = script.replace("workers=2", f"workers=2 {' '.join(keys)}")
        (tmp_path / "train.sbatch").write_text(text.replace("holdfast train", f"{MAIN} train"))
        where = [f"--chdir={tmp_path}", f"--output={tmp_path / 'output'}", f"--nodes={nodes}"]
        said = cluster.tell("sbatch", "--parsable", *where, str(tmp_path / "train.sbatch"))
        assert said.strip().isdecimal(), said
        return said.strip()

    yield run
    cluster.tell("scancel", "--user=root")
    wait_until(lambda: holdfast_processes(str(tmp_path)) == [])


def output(tmp_path):
    path = tmp_path / "output"
    return path.read_text() if path.exists() else ""


def weights(tmp_path, name="digits"):
    return json.loads((tmp_path / name / "result.json").read_text())["weights_sha256"]


def alone(command, tmp_path, *keys):
    """The weights of the same job on one host."""
    assert command("train", "digits", *keys, "workers=2", "--run", "alone").wait(120) == 0
    return weights(tmp_path, "alone")


def steps(tmp_path):
    path = tmp_path / "digits" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def ended(cluster, job):
    return cluster.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


def test_outside_of_a_job_it_says_how_to_get_into_one():
    with pytest.raises(EngineError, match="belongs to none; write the command into a script for"):
        SlurmEngine({})


@pytest.mark.slow
def test_a_job_trains_to_the_weights_of_one_host(cluster, submit, command, tmp_path):
    job = submit("epochs=2")
    wait_until(lambda: ended(cluster, job), 120)
    assert cluster.state(job) == "COMPLETED", output(tmp_path)
    places = [each["place"] for each in events_of(tmp_path / "digits", "agent-placed")]
    assert sorted(places) == ["n1", "n2"]
    assert weights(tmp_path) == alone(command, tmp_path, "epochs=2")


@pytest.mark.slow
def test_what_the_job_lacks_is_named(cluster, submit, tmp_path):
    job = submit(nodes=1)
    wait_until(lambda: ended(cluster, job))
    assert cluster.state(job) == "FAILED"
    lacks = f"2 nodes with 1 CPUs each; 1 of the 1 in job {job} have them: submit it with"
    assert f"{lacks} --nodes=2 --ntasks-per-node=1 --cpus-per-task=1" in output(tmp_path)
    assert not (tmp_path / "digits").exists()


@pytest.mark.slow
@pytest.mark.soak
def test_a_job_continues_without_a_node_that_is_lost(cluster, submit, command, tmp_path):
    job = submit("epochs=20")
    wait_until(lambda: steps(tmp_path) > 5)
    cluster.lose("n2")
    try:
        wait_until(lambda: events_of(tmp_path / "digits", "agent-ended"))
        wait_until(lambda: ended(cluster, job), 240)
    finally:
        cluster.repair("n2")
    assert cluster.state(job) == "COMPLETED", output(tmp_path)
    sizes = [len(e["members"]) for e in events_of(tmp_path / "digits", "generation-started")]
    assert sizes[-1] == 1
    done = [line["step"] for line in metrics_of(tmp_path / "digits") if "loss" in line]
    assert done == sorted(set(done)), "no step was lost"
    assert weights(tmp_path) == alone(command, tmp_path, "epochs=20")


@pytest.mark.slow
@pytest.mark.soak
def test_a_preempted_job_is_requeued_and_resumes(cluster, submit, command, tmp_path):
    job = submit("epochs=20")
    wait_until(lambda: steps(tmp_path) > 5)
    where = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    high = cluster.tell("sbatch", "--parsable", *where, "--wrap=true").strip()
    wait_until(lambda: cluster.state(high) == "COMPLETED")  # it needs the nodes of the other one
    assert cluster.state(job) == "PENDING", output(tmp_path)
    saved = events_of(tmp_path / "digits", "checkpoint-committed")[-1]["step"]
    assert saved > 5
    soon = "StartTime=now+3"  # nodes refuse a job within the second in which they have ended it
    cluster.tell("scontrol", "update", f"JobId={job}", soon)
    wait_until(lambda: ended(cluster, job), 240)
    assert cluster.state(job) == "COMPLETED", output(tmp_path)
    begun = [each["step"] for each in events_of(tmp_path / "digits", "generation-started")]
    assert begun == [0, 0, saved, saved]
    assert weights(tmp_path) == alone(command, tmp_path, "epochs=20")


@pytest.mark.slow
@pytest.mark.soak
def test_a_killed_agent_is_replaced_on_its_node(cluster, submit, tmp_path):
    job = submit("epochs=20")
    wait_until(lambda: steps(tmp_path) > 5)
    (agent,) = (
        pid
        for pid in holdfast_processes(str(tmp_path))
        if b"\0--placed\0agent-2\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and Path(f"/proc/{pid}/comm").read_text() != "srun\n"
    )
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: len(events_of(tmp_path / "digits", "agent-placed")) == 3)
    wait_until(lambda: ended(cluster, job), 240)
    assert cluster.state(job) == "COMPLETED", output(tmp_path)
    places = [each["place"] for each in events_of(tmp_path / "digits", "agent-placed")]
    assert places[2] in ("n1", "n2")
