"""What a run tells its sinks becomes the metrics of the catalogue, and no others."""

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from holdfast.core.protocol import Stage, WorkerProgress
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.record.recovery_reports import RecoveryReport, RootCause
from holdfast.rundir.system_file import SystemFile
from holdfast.sinks.prometheus.address import MetricsAddress
from holdfast.sinks.prometheus.catalogue import METRICS, table
from holdfast.sinks.prometheus.metrics_server import MAX_REQUESTS, serving
from holdfast.sinks.prometheus.run_metrics import MAX_AGE_S, RunMetrics, SystemMetrics
from holdfast.wire.rpc import RunStateMessage
from system_samples import SAMPLE, taken

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
KNOWN = {metric.name: metric for metric in METRICS.values()}


@pytest.fixture
def run(tmp_path):
    """A run's metrics; `value(name, label=…)` is a sample of them, None if there is none."""

    class Run:
        def __init__(self):
            job = load.check({"name": "digits", "workers": 2, "shards": 4}, where="test")
            self.metrics = RunMetrics(
                tmp_path, job.name, workers=2, restarts=job.restarts, records_progress=True,
                tokens_per_sample=16,
            )  # fmt: skip
            self.registry = CollectorRegistry()
            self.registry.register(self.metrics)
            self.registry.register(SystemMetrics(tmp_path))

        def value(self, name, /, **labels):
            return self.registry.get_sample_value(f"holdfast_{name}", labels)

        def event(self, name, at=None, **fields):
            at = time.time() if at is None else at
            self.metrics.on_line({"event": name, "time_unix_s": at, **fields})

        def step(self, step, **fields):
            workers = {"rank": [0, 1], "shards": [3, 1], "forward": [0.3, 0.2], "wait": [0.0, 0.1]}
            line = {"step": step, "loss": 0.5, "norm": None, "lr": 0.1, "samples": 100}
            line |= {"seconds": 0.4, "time_unix_s": 1000.0 + step, "workers": workers}
            self.metrics.on_line(line | fields)

    return Run()


def test_steps_are_counted_and_the_newest_is_shown(run):
    run.event("run-started", at=900.0, workers=2)
    assert run.value("last_step_timestamp_seconds") == 900
    assert run.value("loss") is None
    assert run.value("samples_per_second") is None
    worker = WorkerProgress(
        step=3, total_steps=10, epoch=1, epochs=4, loss=0.5, samples=200, phase="forward",
        phase_seconds={},
    )  # fmt: skip
    run.metrics.on_progress(
        RunStateMessage(
            stage=Stage.RUN, reason="", root_cause=None, result=None, progress={0: worker}
        )
    )
    run.step(1)
    run.step(2, loss=0.25, skipped=True, logged={"accuracy": 0.625})
    run.metrics.on_line({"step": 2, "evaluation": {"accuracy": 0.75, "confusion": [[1]]}})
    assert (run.value("step"), run.value("planned_steps")) == (3, 10)
    assert (run.value("epoch"), run.value("planned_epochs")) == (1, 4)
    assert run.value("progress_ratio") == pytest.approx(0.3)
    assert run.value("remaining_seconds") == pytest.approx(7 * 0.4)
    assert (run.value("loss"), run.value("accuracy")) == (0.25, 0.75)
    assert run.value("training_accuracy") == 0.625
    assert (run.value("gradient_norm"), run.value("learning_rate")) == (None, 0.1)
    assert run.value("samples_total") == 200
    assert run.value("samples_per_second") == pytest.approx(250)
    assert run.value("tokens_per_second") == pytest.approx(16 * 250)
    assert run.value("skipped_steps_total") == 1
    assert run.value("step_seconds_count") == 2
    assert run.value("step_seconds_bucket", le="0.5") == 2
    assert run.value("last_step_timestamp_seconds") == 1002
    assert run.value("phase_seconds_total", rank="1", phase="wait") == pytest.approx(0.2)
    assert run.value("run_stage", stage="run") == 1
    assert run.value("run_stage", stage="idle") == 0


def test_the_balance_is_that_of_the_newest_steps(run):
    assert run.value("imbalance_ratio") is None
    run.step(1)
    assert run.value("worker_shards", rank="0") == 3
    assert run.value("worker_speed_ratio", rank="0") == 1
    assert run.value("worker_speed_ratio", rank="1") == pytest.approx(5 / 10)
    assert run.value("imbalance_ratio") == pytest.approx(1 - 0.25 / 0.3)
    run.event("worker-slowed", rank=1, step=1, factor=2.0, reason="throttling")
    run.event("link-slowed", ranks=[1], step=1, factor=9.0)
    assert run.value("slowdowns_total", cause="throttling") == 1
    assert run.value("slowdowns_total", cause="link") == 1
    assert run.value("slowdowns_total", cause="data") == 0, "so that the first rise is seen"


def test_workers_on_standby_are_no_members_and_not_lost(run):
    run.event("generation-started", number=1, members=[0, 1], step=0)
    run.event("worker-evicted", rank=1, step=5, reason="slow")
    run.event("worker-evicted", rank=1, step=5, reason="slow")  # each host says so
    run.event("generation-started", number=2, members=[0], step=5)
    assert (run.value("generation"), run.value("desired_workers")) == (2, 2)
    assert run.value("workers", state="member") == run.value("workers", state="standby") == 1
    assert run.value("evictions_total") == 1
    run.event("worker-returned", rank=1, step=9)
    run.event("generation-started", number=3, members=[0, 1], step=9)
    assert run.value("workers", state="member") == 2
    assert run.value("workers", state="standby") == 0


def test_checkpoints_are_counted_once_for_all_hosts(run, tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000007"
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(bytes(1000))
    run.event("run-started", at=900.0)
    assert run.value("last_checkpoint_timestamp_seconds") == 900
    run.event("checkpoint-committed", at=950.0, step=7, directory=str(folder))
    run.event("checkpoint-committed", at=951.0, step=7, directory=f"/elsewhere/{folder.name}")
    assert run.value("checkpoints_total") == 1
    assert run.value("checkpoint_size_bytes") == 1000
    assert run.value("last_checkpoint_timestamp_seconds") == 950
    assert run.value("checkpoint_save_seconds_count") == 0
    workers = {"rank": [0, 1], "shards": [2, 2], "checkpoint": [0.125, 0.25]}
    run.step(8, workers=workers)
    assert run.value("checkpoint_save_seconds_sum") == 0.25
    run.event("checkpoint-failed", step=14, reason="the disk is full")
    run.event("checkpoint-corrupt", step=7, reason="digest")
    run.event("checkpoint-not-collected", step=7, reason="no space")
    counts = {
        cause: run.value("checkpoint_failures_total", cause=cause)
        for cause in METRICS["checkpoint_failures_total"].values
    }
    assert {cause for cause, count in counts.items() if count} == {
        "not-written", "corrupt", "not-collected",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "label"),
    [
        (RootCause(who="rank 1", rank=1, what="was killed by SIGKILL"), "worker"),
        (RootCause(who="rank 1", rank=1, what="hung: it did nothing for 5 s"), "worker-hung"),
        (RootCause(who="fork-server", what="ended"), "fork-server"),
        (RootCause(who="host", what="h2 does not answer"), "host"),
    ],
)
def test_recoveries_are_counted_by_cause_and_stage(run, cause, label):
    report = RecoveryReport(
        number=1, time_unix_s=1000.0, outcome="recovered", causes=(cause,), step=7, ended=(),
        halted=(0,), seconds={"forked": 0.125, "all ready": 0.25}, total_s=0.375, checkpoint=None,
        recomputed_steps=2, recomputed_samples=64,
    )  # fmt: skip
    run.metrics.on_recovery(report)
    assert run.value("recoveries_total", cause=label) == 1
    known = METRICS["recoveries_total"].values
    assert sum(run.value("recoveries_total", cause=each) for each in known) == 1
    assert run.value("recovery_seconds_sum") == 0.375
    assert run.value("recovery_stage_seconds_total", stage="all_ready") == 0.25
    assert run.value("recomputed_steps_total") == 2
    assert run.value("recomputed_samples_total") == 64


def test_failures_within_the_window_use_the_restart_budget(run):
    assert (run.value("restart_budget"), run.value("restart_budget_used")) == (10, 0)
    run.event("worker-exited", at=time.time() - 700, rank=0, unexpected=True)
    run.event("worker-exited", rank=0, unexpected=True)
    run.event("worker-exited", rank=1, unexpected=False)
    run.event("host-lost", host="h2", ranks=[1])
    assert run.value("restart_budget_used") == 2


def test_hosts_are_shown_until_they_are_silent_for_long(run, tmp_path):
    SystemFile(tmp_path).add([taken("h1"), taken("h2", age_s=MAX_AGE_S + 9)])
    assert run.value("host_cpu_ratio", host="h1") == SAMPLE.cpu
    assert run.value("host_cpu_ratio", host="h2") is None
    assert run.value("host_disk_read_bytes_per_second", host="h1") is None
    assert run.value("gpu_temperature_celsius", host="h1", gpu="0") == 61
    assert run.value("gpu_info", host="h1", gpu="0", name="NVIDIA H100") == 1
    assert run.value("worker_memory_bytes", host="h1", rank="1") == 1 << 28


def test_the_metrics_are_those_of_the_catalogue(run, tmp_path):
    SystemFile(tmp_path).add([taken("h1")])
    run.step(1)
    families = list(run.registry.collect())
    shown = {f"{each.name}{'_total' * (each.type == 'counter')}": each for each in families}
    assert shown.keys() == KNOWN.keys()
    for name, family in shown.items():
        metric = KNOWN[name]
        assert (family.type, family.documentation) == (metric.kind, metric.text)
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels <= set(metric.labels)


def test_the_page_has_the_table_of_the_catalogue():
    assert "\n".join(table()).strip() in PAGE.read_text(), "paste: holdfast metrics list"


@pytest.fixture
def served(run, tmp_path):
    """Serve the run's metrics while the block runs: `served(address) -> (url, what was said)`."""

    def serve(address):
        said = []
        context = serving(MetricsAddress.parse(address), tmp_path, (run.metrics,), said.append)
        return context, said

    return serve


def fetched(url, token=None):
    """The status of an answer, and its text."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as it:
            return it.status, it.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, ""


def test_this_host_reads_metrics_without_a_token(served, tmp_path):
    context, said = served("0")
    with context:
        url = said[0].removeprefix("metrics: ")
        status, text = fetched(url)
        assert status == 200
        assert "# TYPE holdfast_step gauge\nholdfast_step 0.0\n" in text
        assert "_created" not in text
        assert fetched(url.replace("/metrics", "/"))[0] == 404
    assert not (tmp_path / "secrets").exists()


def test_other_hosts_need_the_token_of_the_run_which_stays_the_same(served, tmp_path):
    tokens = set()
    for _ in range(2):
        context, said = served("0.0.0.0:0")
        with context:
            path = tmp_path / "secrets" / "metrics.token"
            assert str(path) in said[0]
            assert path.stat().st_mode & 0o777 == 0o600
            url = said[0].split()[1].strip(",").replace("0.0.0.0", "127.0.0.1")
            tokens.add(path.read_text().strip())
            (token,) = tokens
            assert fetched(url)[0] == fetched(url, "wrong")[0] == fetched(url, "ü")[0] == 401
            assert fetched(url, token)[0] == 200


def test_an_empty_token_file_is_replaced(served, tmp_path):
    path = tmp_path / "secrets" / "metrics.token"
    path.parent.mkdir()
    path.touch(0o600)
    context, said = served("0.0.0.0:0")
    with context:
        url = said[0].split()[1].strip(",").replace("0.0.0.0", "127.0.0.1")
        assert fetched(url)[0] == fetched(url, "")[0] == 401
        assert fetched(url, path.read_text().strip())[0] == 200


def test_clients_that_say_nothing_are_bounded_and_do_not_delay_the_end(served):
    context, said = served("0")
    with context:
        host, port = said[0].split("/")[2].split(":")
        silent = [socket.create_connection((host, int(port)), 30) for _ in range(MAX_REQUESTS)]
        late = socket.create_connection((host, int(port)), 30)
        assert late.recv(1) == b"", "closed"
        for each in (*silent, late):
            each.close()


@pytest.mark.parametrize("text", ["", "x", "9400x", "host:9400", "127.0.0.1:", "1.2.3:4", "99999"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(JobError, match=r"--metrics .*give a port"):
        MetricsAddress.parse(text)


def test_an_address_in_use_is_refused(served):
    context, said = served("0")
    with context, pytest.raises(JobError, match="cannot listen at"):
        MetricsAddress.parse(said[0].split("/")[2])


def test_addresses_of_both_versions_are_understood():
    assert MetricsAddress(address="::1", port=0).is_loopback
    assert not MetricsAddress.parse("0.0.0.0:0").is_loopback
    assert MetricsAddress(address="::1", port=0).url(7) == "http://[::1]:7/metrics"
