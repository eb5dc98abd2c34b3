"""Kubeflow Trainer is told how far a run is: by a stand-in for its controller."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import Library, events_of, own_loopback_address, wait_until
from holdfast.clusters.engines.kubernetes.trainjob_status import (
    TrainerServer,
    TrainJobStatus,
    status_of,
)
from holdfast.core.protocol import WorkerProgress
from holdfast.errors import JobError
from holdfast.rundir.json_lines import EventLog
from kubernetes_api import own_certificate

models = Library("kubeflow_trainer_api.models")

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ns/trainjobs/digits/status"


class Controller(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == PATH
        right = self.headers["Authorization"] == "Bearer of-the-pod"
        if right:
            self.server.posted.append(body)
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def controller(folder):
    """What a pod finds in its environment, and what it has posted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Controller)
    server.posted = []
    server.socket = own_certificate(folder).wrap_socket(server.socket, server_side=True)
    (folder / "token").write_text("of-the-pod\n")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield (
            server.posted,
            {
                "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{server.server_port}{PATH}",
                "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token"),
                "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(folder / "ca.crt"),
            },
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def progress(step, total=200):
    return WorkerProgress(
        step=step, total_steps=total, epoch=1, epochs=4, loss=0.25, samples=64 * step,
        phase="compute", phase_seconds={},
    )  # fmt: skip


def test_a_status_is_one_that_trainer_knows():
    body = {"trainerStatus": status_of(progress(51), 90.4)}
    assert body["trainerStatus"]["progressPercentage"] == 25
    assert body["trainerStatus"]["estimatedRemainingSeconds"] == 90
    metrics = {each["name"]: each["value"] for each in body["trainerStatus"]["metrics"]}
    assert metrics == {"step": "51", "epoch": "2", "loss": "0.25"}
    read = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(body)
    assert json.loads(json.dumps(read.to_dict(), default=str)).keys() == body.keys()
    known = read.to_dict()["trainerStatus"]
    assert known.pop("lastUpdatedTime").isoformat() == (
        body["trainerStatus"].pop("lastUpdatedTime").replace("Z", "+00:00")
    )
    assert known == body["trainerStatus"]


def test_the_last_progress_is_posted_with_the_token_that_is_valid_then(tmp_path):
    with controller(tmp_path) as (posted, environment), EventLog(tmp_path / "events") as log:
        server = TrainerServer.of(environment)
        (tmp_path / "token").write_text("an older one")
        with TrainJobStatus(server, lambda: progress(200), 3, log):
            (tmp_path / "token").write_text("of-the-pod")
        assert [each["trainerStatus"]["progressPercentage"] for each in posted] == [100]
        assert posted[0]["trainerStatus"]["estimatedRemainingSeconds"] == 0
    assert (tmp_path / "events").read_text() == ""


def test_a_controller_that_refuses_is_an_event_without_the_token(tmp_path):
    with controller(tmp_path) as (posted, environment), EventLog(tmp_path / "events.jsonl") as log:
        (tmp_path / "token").write_text("of-someone-else")
        with TrainJobStatus(TrainerServer.of(environment), lambda: progress(20), 1, log):
            pass
        assert posted == []
    (event,) = events_of(tmp_path, "progress-not-posted")
    assert event["reason"] == "127.0.0.1 refuses the progress: 401"


def test_outside_of_a_trainjob_nothing_is_posted():
    assert TrainerServer.of({}) is None
    with pytest.raises(JobError, match="'KUBEFLOW_TRAINER_SERVER_TOKEN' is not; unset it"):
        TrainerServer.of({"KUBEFLOW_TRAINER_SERVER_URL": "https://trainer"})


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_in_a_trainjob_posts_its_progress(tmp_path, command):
    address = own_loopback_address()
    job = ["digits", "workers=2", "epochs=3", "--no-workers", "--hosts", "2"]
    first = command("coordinator", *job, "--address", address, "--run", "run")
    token = tmp_path / "run" / "secrets" / "join.token"
    wait_until(token.exists)
    join = ["agent", "--join", f"{address}:50051", "--token-file", str(token)]
    (tmp_path / "of-trainer").mkdir()
    with controller(tmp_path / "of-trainer") as (posted, environment):
        agents = [
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", *join, "--run", f"host-{number}"], cwd=tmp_path,
                env={**os.environ, "HOLDFAST_TEST": str(tmp_path), **environment},
            )
            for number in (1, 2)
        ]  # fmt: skip
        assert first.wait(120) == 0
        assert [each.wait(60) for each in agents] == [0, 0]
        assert posted[-1]["trainerStatus"]["progressPercentage"] == 100
        loss = json.loads((tmp_path / "run" / "result.json").read_text())["loss"]
        metrics = {each["name"]: each["value"] for each in posted[-1]["trainerStatus"]["metrics"]}
        assert metrics["loss"] == f"{loss:g}"
