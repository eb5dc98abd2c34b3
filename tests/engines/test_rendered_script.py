"""A real Slurm runs the script of `holdfast render slurm`."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from slurm_cluster import slurm_cluster

from conftest import events_of, holdfast_processes, metrics_of, wait_until
from holdfast.job import load
from holdfast.render.slurm import sbatch

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="module")
def cluster():
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short enough for a socket's path
    with slurm_cluster(folder) as made:
        yield made
    shutil.rmtree(folder)


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch):
    """Submit the script of a job on two nodes; nothing is left of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOLDFAST_TEST", str(tmp_path))

    def run(*words):
        job = load.load(words[0], [*words[1:], "hosts=2"]).resolved()
        command = f"{sys.executable} -m holdfast train"
        (tmp_path / "job.sh").write_text(sbatch(job, words).replace("holdfast train", command))
        where = f"--chdir={tmp_path}"
        return cluster.tell("sbatch", "--parsable", where, str(tmp_path / "job.sh")).strip()

    yield run
    cluster.tell("scancel", "--user=root")
    wait_until(lambda: holdfast_processes(str(tmp_path)) == [])


def steps(run):
    return len(metrics_of(run)) if (run / "metrics.jsonl").exists() else 0


def test_a_preempted_job_is_requeued_and_can_be_stopped_for_good(cluster, submit, tmp_path):
    job = submit("digits", "workers=2", "epochs=2000")
    run = tmp_path / "runs" / f"digits-{job}"
    wait_until(lambda: steps(run) > 5)
    high = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    cluster.tell("sbatch", *high, "--wrap=true")
    wait_until(lambda: cluster.state(job) == "PENDING")
    saved = events_of(run, "checkpoint-committed")[-1]["step"]
    assert saved > 5
    cluster.tell("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until(lambda: steps(run) > saved)
    assert events_of(run, "generation-started")[-1]["step"] == saved
    cluster.tell("scancel", "--batch", "--signal=INT", job)
    wait_until(lambda: cluster.state(job) == "FAILED")
    assert events_of(run, "checkpoint-committed")[-1]["step"] > saved


def test_a_run_ends_with_the_status_of_the_job(cluster, submit, tmp_path):
    job = submit("digits", "workers=2", "epochs=2")
    wait_until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), 120)
    assert cluster.state(job) == "COMPLETED", (tmp_path / f"digits-{job}.log").read_text()
    assert (tmp_path / "runs" / f"digits-{job}" / "result.json").exists()
