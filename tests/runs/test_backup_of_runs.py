"""The run directory is lost in mid-run, and the run ends with the same weights elsewhere."""

import os
import shutil
import signal
from contextlib import closing

import pytest

from conftest import SMALL, events_of, own_loopback_address, wait_until
from holdfast.api.train import run_job
from holdfast.checkpoint.store import CheckpointStore
from holdfast.job import load
from holdfast.runs.hosts.endpoint import Endpoint
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions
from holdfast.sinks.backup.restore import restore
from object_stores import make_bucket, s3_server
from process_engine import ProcessEngine

pytestmark = pytest.mark.slow

EPOCHS = 10


@pytest.fixture
def bucket():
    with s3_server():
        make_bucket("bucket")
        yield "s3://bucket/backups"


def test_a_run_whose_directory_is_lost_ends_elsewhere_with_the_same_weights(
    bucket, command, forks, reference, tmp_path
):
    run_dir, elsewhere = tmp_path / "lost", tmp_path / "elsewhere"
    values = {**SMALL, "epochs": EPOCHS, "checkpoint": {"every_steps": 3}, "backup": bucket}
    (tmp_path / "job.yaml").write_text(load.dump(load.check(values, where="test")))
    process = command("train", tmp_path / "job.yaml", "workers=2", "--run", run_dir)

    def is_copied():
        assert process.poll() is None, "it ended before it could be killed"
        return (run_dir / "events.jsonl").exists() and events_of(run_dir, "backup-completed")

    wait_until(is_copied)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    def is_deleted():  # its last processes may still write there
        shutil.rmtree(run_dir, ignore_errors=True)
        return not run_dir.exists()

    wait_until(is_deleted)

    restore(bucket, elsewhere, os.environ, print)
    options = LaunchOptions(forks=forks)
    result = run_job(load.resumed(elsewhere), options, run_dir=elsewhere, resume=True)
    [restored] = events_of(elsewhere, "run-restored")
    begun = [each["step"] for each in events_of(elsewhere, "generation-started")]
    assert 0 < restored["step"] == begun[-1] < result.steps
    assert result.weights_sha256 == reference(EPOCHS)
    assert events_of(elsewhere, "backup-completed")[-1]["step"] == result.steps


@pytest.mark.soak
def test_a_run_on_several_hosts_is_copied_by_the_host_of_the_command(tmp_path):
    second = str(tmp_path / "second")
    keys = {"workers": 2, "hosts": 2, "shards": 4, "epochs": 2, "backup": second}
    job = load.load("digits", values={**keys, "checkpoint": {"every_steps": 10}})
    with closing(ProcessEngine(tmp_path / "cluster")) as engine:
        endpoint = Endpoint(address=own_loopback_address(), port=50051)
        placement = Placement(engine=engine, endpoint=endpoint)
        result = run_job(job, run_dir=tmp_path / "run", resume=False, placement=placement)
    assert events_of(tmp_path / "run", "backup-completed")[-1]["step"] == result.steps
    restored = restore(second, tmp_path / "restored", os.environ, print)
    assert CheckpointStore.of_run(restored).newest().step == result.steps


def test_a_store_that_cannot_be_used_does_not_end_a_run(forks, reference, tmp_path, capfd):
    values = {**SMALL, "epochs": 2, "checkpoint": {"every_steps": 3}, "backup": "/proc/nothing"}
    job = load.request(values, where="test")
    result = run_job(job, LaunchOptions(forks=forks), run_dir=tmp_path / "run", resume=False)
    assert result.status == "finished"
    assert result.weights_sha256 == reference(2)
    [failed] = events_of(tmp_path / "run", "backup-failed")
    assert failed["url"].startswith("/proc/nothing/job-")
    said = capfd.readouterr().err
    assert "the backup in /proc/nothing has not got the end of the run: [Errno 2]" in said
    assert "--resume copies it" in said
