"""A server of MLflow on SQLite has each value once, though it was away for a while."""

import os
import signal
import subprocess
import sys

import pytest
import requests

from conftest import needs_library, wait_until
from holdfast.job import load
from holdfast.rundir.json_lines import EventLog, JsonLines
from holdfast.rundir.run_directory import RunDirectory
from holdfast.sinks.trackers.sender import deliver
from holdfast.sinks.trackers.tracker_sink import senders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    needs_library("mlflow.server"),
]


class Server:
    """MLflow's own server, which can be killed and started again on the same port and data."""

    def __init__(self, folder, port):
        self._folder, self._port, self._process = folder, port, None
        self.uri = f"http://127.0.0.1:{port}"

    def start(self):
        words = ["--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db", "--workers", "1"]
        words += ["--artifacts-destination", str(self._folder / "artifacts")]
        words += ["--host", "127.0.0.1", "--port", str(self._port)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words],
                stdout=log, stderr=log, start_new_session=True, cwd=self._folder,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
            )  # fmt: skip
        wait_until(self._answers, 240)  # it imports all of itself in several processes

    def _answers(self):
        try:
            return requests.get(f"{self.uri}/health", timeout=5).ok
        except requests.RequestException:
            return False

    def kill(self):
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path, free_port):
    made = Server(tmp_path, free_port)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def a_run(tmp_path, server):
    tracker = {"name": "mlflow", "uri": server.uri, "experiment": "exp"}
    job = load.check({"name": "points", "task": "x.py:y", "trackers": [tracker]}, "test")
    with RunDirectory(tmp_path / "run", job, resume=False) as directory:
        yield directory


def add(run, steps):
    with JsonLines(run.path / "metrics.jsonl") as file:
        for step in steps:
            file.write(step=step, loss=1 / step, samples=20, seconds=0.5, time_unix_s=100.0 + step)


def started(run):
    (sender,), _ = senders(run.job, run.path, {})
    sender.start()
    return sender


def test_what_came_while_the_server_was_away_is_there_once(a_run, server):
    from mlflow import MlflowClient

    add(a_run, range(1, 500))
    sender, kept = started(a_run), a_run.path / "trackers" / "mlflow.json"
    wait_until(lambda: kept.exists() and b'"step":499' in kept.read_bytes())
    before = kept.read_bytes()
    add(a_run, range(500, 600))
    wait_until(lambda: b'"step":599' in kept.read_bytes())
    server.kill()
    add(a_run, range(600, 700))
    wait_until(lambda: sender.trouble)
    server.start()
    assert deliver([sender], lambda _: False) == []
    kept.write_bytes(before)  # as if the command had been killed before it was stored
    with EventLog(a_run.path / "events.jsonl") as log:
        log.event("run-started", workers=1, pid=1)
        log.event("run-ended", status="finished", steps=700)
    add(a_run, [700])
    assert deliver([started(a_run)], lambda _: False) == []

    client = MlflowClient(server.uri)
    (found,) = client.search_runs([client.get_experiment_by_name("exp").experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    places = [(each.step, each.timestamp) for each in history]
    assert places == [(step, 1000 * (100 + step)) for step in range(1, 701)]
    assert [each.value for each in history] == [1 / step for step in range(1, 701)]
    assert found.info.status == "FINISHED"
    assert found.data.params["optimizer.lr"] == str(a_run.job.optimizer.lr)
    assert found.data.tags["holdfast.version.python"] == ".".join(map(str, sys.version_info[:3]))
    assert [each.path for each in client.list_artifacts(found.info.run_id)] == ["job.yaml"]
