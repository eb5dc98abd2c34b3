"""A real Slurm runs the script of `holdfast render slurm`."""

import json

import pytest
import slurm_cluster
from slurm_cluster import begins, printed, saved, steps

from conftest import wait_until
from holdfast.clusters.render.slurm import sbatch
from holdfast.job import load

cluster, submit = slurm_cluster.cluster, slurm_cluster.submit
pytestmark = [pytest.mark.slow, pytest.mark.soak]


def script(*words):
    """The script of a job on two nodes."""
    job = load.load(words[0], [*words[1:], "hosts=2"]).resolved()
    return sbatch(job, words)


def weights(run):
    return json.loads((run / "result.json").read_text())["weights_sha256"]


def test_a_preempted_job_is_requeued_and_ends_with_the_weights_of_one_host(
    cluster, submit, command, tmp_path
):
    words = ["digits", "workers=2", "epochs=20"]
    job = submit(script(*words))
    run = tmp_path / "runs" / f"digits-{job}"
    wait_until(lambda: steps(run) > 5)
    cluster.preempt(job)
    newest = saved(run)
    assert newest > 5
    assert cluster.await_end(job) == "COMPLETED", printed(tmp_path)
    assert begins(run)[-1] == newest
    assert command("train", *words, "--run", "alone").wait(120) == 0
    assert weights(run) == weights(tmp_path / "alone")


def test_a_requeued_job_can_be_stopped_for_good(cluster, submit, tmp_path):
    job = submit(script("digits", "workers=2", "epochs=2000"))
    run = tmp_path / "runs" / f"digits-{job}"
    wait_until(lambda: steps(run) > 5)
    cluster.preempt(job)
    newest = saved(run)
    wait_until(lambda: begins(run)[-1] == newest)
    before = steps(run)
    wait_until(lambda: steps(run) > before + 5)
    cluster.tell("scancel", "--batch", "--signal=INT", job)
    assert cluster.await_end(job) == "FAILED", printed(tmp_path)
    assert saved(run) > newest
