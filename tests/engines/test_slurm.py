"""Runs inside jobs of a real Slurm: a controller and two nodes on this machine."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import slurm_cluster
from slurm_cluster import begins, printed, saved, steps

import nvml_stand_in
from conftest import events_of, holdfast_processes, metrics_of, wait_until
from holdfast.clusters.engines.slurm import SlurmEngine
from holdfast.errors import EngineError
from holdfast.runs.hosts.endpoint import address_towards
from nvml_stand_in import needs_gcc

cluster, submit = slurm_cluster.cluster, slurm_cluster.submit
REPORTING = Path(__file__).parents[1] / "runs" / "scripts" / "reporting.py"
PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"


@pytest.fixture
def run(tmp_path):
    """The directory of the run of a job."""
    return tmp_path / "digits"


def script(*keys):
    """The script of the page, with further keys of the job."""
    (text,) = re.findall(r"^```shell\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return text.replace("workers=2", f"workers=2 {' '.join(keys)}")


def weights(run):
    return json.loads((run / "result.json").read_text())["weights_sha256"]


def alone(command, tmp_path, *keys):
    """The weights of the same job on one host."""
    assert command("train", "digits", *keys, "workers=2", "--run", "alone").wait(120) == 0
    return weights(tmp_path / "alone")


def test_outside_of_a_job_it_says_how_to_get_into_one():
    with pytest.raises(EngineError, match="belongs to none; write the command into a script for"):
        SlurmEngine({})


@pytest.mark.full
@pytest.mark.slow
def test_a_job_trains_to_the_weights_of_one_host(cluster, submit, command, run, tmp_path):
    job = submit(script("epochs=1"))
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    places = [each["place"] for each in events_of(run, "agent-placed")]
    assert sorted(places) == ["n1", "n2"]
    assert weights(run) == alone(command, tmp_path, "epochs=1")


@pytest.mark.slow
@pytest.mark.full
def test_a_script_runs_on_the_nodes_of_a_job(cluster, submit, tmp_path):
    words = f"--nnodes 2 --on slurm --run run {REPORTING} {tmp_path} 20 killed"
    job = submit(f"#!/bin/sh\nholdfast run {words}\n", "--nodes=2")
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    run = tmp_path / "run"
    assert sorted(each["place"] for each in events_of(run, "agent-placed")) == ["n1", "n2"]
    assert [each["step"] for each in metrics_of(run)] == list(range(1, 21))


@pytest.mark.slow
@pytest.mark.full
def test_what_the_job_lacks_is_named(cluster, submit, run, tmp_path):
    job = submit(script(), "--nodes=1")
    assert cluster.await_end(job) == "FAILED"
    lacks = f"2 nodes with 1 CPUs each; 1 of the 1 in job {job} have them: submit it with"
    assert f"{lacks} --nodes=2 --ntasks-per-node=1 --cpus-per-task=1" in printed(tmp_path)
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.full
def test_gpus_that_the_job_lacks_are_named(cluster, submit, tmp_path):
    job = submit(script("resources.gpus=1", "workers=4"), "--gpus-per-node=1", "--cpus-per-task=2")
    assert cluster.await_end(job) == "FAILED"
    assert f"2 GPUs on each node; job {job} has 1: submit it with" in printed(tmp_path)


SEES = """
import os
from pathlib import Path
import torch
from torch.utils.data import TensorDataset

def main(session):
    Path("gpus").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    model, _ = session.attach(
        lambda: torch.nn.Linear(1, 1), lambda each: torch.optim.SGD(each, lr=0.1)
    )
    for (x,) in session.shards(TensorDataset(torch.ones(1, 1))):
        session.backward(model(x).mean())
"""


@needs_gcc
@pytest.mark.slow
@pytest.mark.full
def test_a_worker_sees_a_gpu_of_its_step_by_uuid(cluster, submit, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", nvml_stand_in.build(tmp_path)["LD_LIBRARY_PATH"])
    (tmp_path / "sees.py").write_text(SEES)
    keys = "hosts=1 workers=1 epochs=1 batch=1 shards=1 resources.gpus=1"
    text = f"#!/bin/sh\nenv | grep CUDA\nholdfast train sees.py:main {keys} --on slurm\n"
    job = submit(text, "--nodes=1", "--gpus-per-node=2")
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    assert "CUDA_VISIBLE_DEVICES=0,1\n" in printed(tmp_path), "the job has both"
    assert (tmp_path / "gpus").read_text() == "GPU-3060"


FAILS = """#!/usr/bin/env python
import os, select
from holdfast.clusters.engines.engine import Launch, ResourceRequest
from holdfast.clusters.engines.slurm import SlurmEngine
from holdfast.job.resources import Resources

engine = SlurmEngine(os.environ)
assert engine.reserve(ResourceRequest(agents=1, workers=1, resources=Resources(cpus=1))) == ""
engine.start(Launch(name="agent-1", arguments=("agent", "--join", "nowhere"), token=""))
while not (cause := engine.places()["agent-1"].cause):
    select.select([engine], [], [])
print(cause)
engine.close()
"""


@pytest.mark.slow
@pytest.mark.full
def test_an_agent_that_cannot_begin_says_why(cluster, submit, tmp_path):
    job = submit(FAILS, "--nodes=1")
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    said = "the agent on n1 ended with status 2: holdfast: give --token-file"
    assert printed(tmp_path).startswith(said)


@pytest.mark.slow
@pytest.mark.soak
def test_a_job_continues_without_a_node_that_is_lost(cluster, submit, command, run, tmp_path):
    job = submit(script("epochs=20"))
    wait_until(lambda: steps(run) > 5)
    cluster.lose("n2")
    try:
        wait_until(lambda: events_of(run, "agent-ended"))
        assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    finally:
        cluster.repair("n2")
    sizes = [len(each["members"]) for each in events_of(run, "generation-started")]
    assert sizes[-1] == 1
    done = [line["step"] for line in metrics_of(run) if "loss" in line]
    assert done == sorted(set(done)), "no step was lost"
    assert weights(run) == alone(command, tmp_path, "epochs=20")


@pytest.mark.slow
@pytest.mark.soak
def test_without_no_kill_a_job_that_loses_a_node_is_requeued(
    cluster, submit, command, run, tmp_path
):
    keys = ["epochs=20", "checkpoint.every_steps=20"]
    job = submit(script(*keys).replace("--no-kill ", ""))
    wait_until(lambda: steps(run) > 5)
    cluster.lose("n2")
    try:
        wait_until(lambda: cluster.state(job) == "PENDING")
    finally:
        cluster.repair("n2")
    newest = saved(run)
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    assert begins(run)[-1] == newest
    assert weights(run) == alone(command, tmp_path, *keys)


@pytest.mark.slow
@pytest.mark.soak
def test_a_preempted_job_is_requeued_and_resumes(cluster, submit, command, run, tmp_path):
    job = submit(script("epochs=20"))
    wait_until(lambda: steps(run) > 5)
    cluster.preempt(job)
    newest = saved(run)
    assert newest > 5
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    assert begins(run) == [0, 0, newest, newest]
    assert weights(run) == alone(command, tmp_path, "epochs=20")


@pytest.mark.slow
@pytest.mark.soak
def test_the_nodes_of_a_job_are_checked(cluster, submit, run, tmp_path):
    words = f"digits hosts=2 workers=2 --on slurm --address {address_towards()}"  # not loopback
    begin = "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=1\n"
    job = submit(f"{begin}holdfast doctor {words} --json\n")
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    told = json.loads(printed(tmp_path).splitlines()[-1])
    assert told["settings"] == [f"holdfast train {words}"]
    assert {each["host"] for each in told["findings"]} == {"", "n1", "n2"}


@pytest.mark.slow
@pytest.mark.soak
def test_a_killed_agent_is_replaced_on_its_node(cluster, submit, run, tmp_path):
    job = submit(script("epochs=20"))
    wait_until(lambda: steps(run) > 5)
    (agent,) = (
        pid
        for pid in holdfast_processes(str(tmp_path))
        if b"\0--placed\0agent-2\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and Path(f"/proc/{pid}/comm").read_text() != "srun\n"
    )
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: len(events_of(run, "agent-placed")) == 3)
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    places = [each["place"] for each in events_of(run, "agent-placed")]
    assert places[2] in ("n1", "n2")
