"""Runs in trackers: what was killed, resumed, or could not be sent at first is there, once."""

import gzip
import http.server
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import Library
from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

event_accumulator = Library("tensorboard.backend.event_processing.event_accumulator")
trace_service = Library("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TASKS = Path(__file__).with_name("callback_tasks.py")
STEPS = 12


@contextmanager
def receiving(port=0):
    """A stand-in for an OpenTelemetry collector: decodes what it gets, and keeps the spans."""
    spans = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            assert self.path == "/v1/traces"
            request = trace_service.ExportTraceServiceRequest.FromString(content)
            for resource in request.resource_spans:
                facts = {each.key: each.value.string_value for each in resource.resource.attributes}
                spans.extend(
                    (facts, span) for scope in resource.scope_spans for span in scope.spans
                )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield spans, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def job_of(tmp_path, *trackers, **keys):
    values = {
        "name": "points", "task": f"{TASKS}:watched", "batch": 20, "shards": 4, "workers": 2,
        "params": {"seen": str(tmp_path / "seen"), "kill": 5}, "trackers": trackers, **keys,
    }  # fmt: skip
    return load.check(values, where="test")


def scalars(run_dir, name):
    board = event_accumulator.EventAccumulator(str(run_dir / "tensorboard"), {"scalars": 0})
    board.Reload()
    return [(each.step, pytest.approx(each.value)) for each in board.Scalars(name)]


def recoveries(run_dir):
    return [json.loads(line) for line in (run_dir / "recoveries.jsonl").read_text().splitlines()]


def test_a_run_that_is_killed_and_resumed_is_in_its_trackers_once(forks, tmp_path):
    run_dir = tmp_path / "run"

    def stop_early(event):
        if event.kind == "step" and event.step == 8:
            event.stop()

    with receiving() as (spans, endpoint):
        job = job_of(tmp_path, "tensorboard", {"name": "otel", "endpoint": endpoint})
        ended = run_job(
            job,
            LaunchOptions(forks=forks),
            run_dir=run_dir,
            resume=False,
            attendance=Attendance(on_event=stop_early),
        )
        assert ended.status in ("stopped", "finished")  # it may end before it hears of the stop
        result = run_job(job, LaunchOptions(forks=forks), run_dir=run_dir, resume=True)
    assert result.status == "finished"
    history = result.history
    assert scalars(run_dir, "train/loss") == [*zip(history["step"], history["loss"], strict=True)]
    assert len(history["step"]) == STEPS
    accuracy = [*zip(result.evaluations["step"], result.evaluations["accuracy"], strict=True)]
    assert scalars(run_dir, "evaluation/accuracy") == accuracy
    (report,) = recoveries(run_dir)
    assert scalars(run_dir, "recovery/seconds") == [(1, report["total_s"])]
    assert_traced(spans, report)


def assert_traced(spans, report):
    """One trace: a span for the recovery, and in it one for each phase, one after the other."""
    facts, whole = spans[0] if spans[0][1].name == "recovery" else spans[-1]
    phases = [span for _, span in spans if span is not whole]
    assert facts["service.name"] == "holdfast"
    assert {span.trace_id for _, span in spans} == {whole.trace_id}
    assert [span.name for span in phases] == list(report["seconds"])
    assert {span.parent_span_id for span in phases} == {whole.span_id}
    seconds = [
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in (whole, *phases)
    ]
    assert seconds == pytest.approx([report["total_s"], *report["seconds"].values()], abs=0.01)
    assert phases[0].start_time_unix_nano == whole.start_time_unix_nano
    attributes = {each.key: each.value for each in whole.attributes}
    assert attributes["recovery.rank"].int_value == report["causes"][0]["rank"]


@pytest.mark.soak
def test_what_could_not_be_sent_is_named_and_sent_later(tmp_path, free_port):
    endpoint = f"http://127.0.0.1:{free_port}"
    job = job_of(tmp_path, {"name": "otel", "endpoint": endpoint})
    (tmp_path / "job.yaml").write_text(load.dump(job))

    def holdfast(*words):
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip

    run = holdfast("train", "job.yaml", "--run", "run")
    assert run.returncode == 0, run.stderr
    assert "holdfast: otel has not got " in run.stderr
    assert "send it later with: holdfast track run" in run.stderr
    assert "Traceback" not in run.stderr
    with receiving(free_port) as (spans, _):
        tracked = holdfast("track", "run")
        again = holdfast("track", "run")
    assert (tracked.returncode, tracked.stdout) == (0, "otel: all of run is sent\n"), tracked.stderr
    assert again.returncode == 0
    assert_traced(spans, recoveries(tmp_path / "run")[0])


def test_a_script_has_trackers_too(run, tmp_path):
    result = run("print('hello')", trackers=["tensorboard"])
    assert result.status == "finished"
    board = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert board.Tags()["tensors"] == ["job"]


def test_a_tracker_without_an_address_is_refused_before_the_run(forks, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(JobError, match=r"mlflow has no address; set MLFLOW_TRACKING_URI"):
        run_job(
            job_of(tmp_path, "mlflow"),
            LaunchOptions(forks=forks),
            run_dir=tmp_path / "run",
            resume=False,
        )
    assert not (tmp_path / "run").exists()
