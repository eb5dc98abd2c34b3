"""RunMetrics and SystemMetrics: what happens in a run and what its hosts use, when Prometheus asks.

    Follower ── on_line, on_recovery, on_progress ──▶ RunMetrics ◀── collect ── HTTP server

It is a sink like others: it runs in the command's process, and no worker waits for it. Counters
begin at 0 with every start of a run, as Prometheus expects of a process. What hosts use is read
from `system.jsonl` at each scrape.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from holdfast.core.protocol import Stage
from holdfast.job.settings import Restarts
from holdfast.record import breakdown, live_state
from holdfast.record.alert_rules import CHECKPOINT_FAILURE_CAUSES
from holdfast.record.live_state import FailureWindow, RecentSteps, Roster
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.run_record import size_bytes
from holdfast.record.sink import Sink
from holdfast.rundir.system_file import SystemFile
from holdfast.sinks.prometheus.catalogue import METRICS
from holdfast.wire.rpc import RunStateMessage

BALANCE_STEPS: Final = 20
"""Count of the newest steps in which the balance is measured."""
MAX_AGE_S: Final = 60.0
"""A host without a newer sample is not shown: it has left, or is lost. Clocks may differ."""


class RunMetrics(Sink):
    """Collects the metrics of one run.

    Args:
        run_dir: The run's directory.
        job: The name of its job.
        workers: Workers that it should have.
        restarts: Failures that it tolerates.
        records_progress: True if its steps and checkpoints are known; those of a script are not.
        tokens_per_sample: Tokens of a sample; None if it has none.
    """

    def __init__(
        self,
        run_dir: Path,
        job: str,
        *,
        workers: int,
        restarts: Restarts,
        records_progress: bool,
        tokens_per_sample: int | None,
    ) -> None:
        self._run_dir = run_dir
        self._job = job
        self._desired_workers = workers
        self._restart_limit = restarts.limit
        self._records_progress = records_progress
        self._tokens_per_sample = tokens_per_sample
        self._lock = threading.Lock()  # the server has threads of its own
        self._started_at = time.time()
        self._state: RunStateMessage | None = None
        self._steps = RecentSteps()
        self._accuracy: float | None = None
        self._generation: int | None = None
        self._workers = Roster()
        self._checkpoint: Mapping[str, Any] = {}
        self._checkpoint_bytes: int | None = None
        self._failures = FailureWindow(restarts.window_s)
        self._counters = {each: counter(each) for each in _of_kind("counter")}
        self._histograms = {each: histogram(each) for each in _of_kind("histogram")}

    def on_progress(self, state: RunStateMessage) -> None:
        """Take the newest state."""
        self._state = state

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Count an event, a step or an evaluation."""
        with self._lock:
            if "event" in line:
                self._on_event(line)
            elif "evaluation" in line:
                accuracy = line["evaluation"].get("accuracy")
                self._accuracy = accuracy if isinstance(accuracy, int | float) else None
            else:
                self._on_step(line)

    def on_recovery(self, report: RecoveryReport) -> None:
        """Count a recovery."""
        with self._lock:
            self._counters["recoveries_total"].labels(_cause_of(report)).inc()
            self._histograms["recovery_seconds"].observe(report.total_s)
            stages = self._counters["recovery_stage_seconds_total"]
            for stage, seconds in report.seconds.items():
                stages.labels(stage.replace(" ", "_")).inc(seconds)
            self._counters["recomputed_steps_total"].inc(report.recomputed_steps)
            self._counters["recomputed_samples_total"].inc(report.recomputed_samples)

    def collect(self) -> Iterator[Family]:
        """Give all metrics; see `prometheus_client.registry.Collector`."""
        with self._lock:
            families = [
                *self._training(),
                *self._checkpointing(),
                *self._recovering(),
                *_balance(self._steps),
                *self._running(),
            ]
            for each in (*self._counters.values(), *self._histograms.values()):
                families += each.collect()
        yield from families

    def _on_step(self, line: Mapping[str, Any]) -> None:
        self._steps.take(line)
        self._counters["samples_total"].inc(line.get("samples", 0))
        self._counters["skipped_steps_total"].inc(bool(line.get("skipped")))
        if line.get("seconds") is not None:
            self._histograms["step_seconds"].observe(line["seconds"])
        workers = line.get("workers") or {}
        for name, seconds in workers.items():
            if name in ("rank", "shards", "link"):  # a link's wait is part of another phase
                continue
            for rank, each in zip(workers["rank"], seconds, strict=False):
                self._counters["phase_seconds_total"].labels(rank, name).inc(each)
        saved_s = max(workers.get("checkpoint", ()), default=0.0)
        if saved_s:
            self._histograms["checkpoint_save_seconds"].observe(saved_s)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "worker-evicted" and event["rank"] not in self._workers.standby:
            self._counters["evictions_total"].inc()
        self._workers.take(event)
        self._failures.take(event)
        match event["event"]:
            case "run-started":
                self._started_at = event["time_unix_s"]
            case "generation-started":
                self._generation = event["number"]
            case "worker-slowed":
                self._counters["slowdowns_total"].labels(event["reason"]).inc()
            case "link-slowed":
                self._counters["slowdowns_total"].labels("link").inc()
            case "checkpoint-committed" if event["step"] != self._checkpoint.get("step"):
                self._checkpoint = event
                self._counters["checkpoints_total"].inc()
                name = Path(event["directory"]).name
                self._checkpoint_bytes = size_bytes(self._run_dir / "checkpoints" / name)
            case name if name in CHECKPOINT_FAILURE_CAUSES:
                failures = self._counters["checkpoint_failures_total"]
                failures.labels(CHECKPOINT_FAILURE_CAUSES[name]).inc()

    def _training(self) -> Iterator[Family]:
        newest = self._steps.newest
        furthest = live_state.furthest([*self._state.progress.values()] if self._state else [])
        planned = furthest.total_steps or None if furthest else None
        step = max(newest.get("step", 0), furthest.step if furthest else 0)
        steps_per_s, samples_per_s = self._steps.pace() or (None, None)
        yield gauge("step", step)
        yield gauge("planned_steps", planned)
        yield gauge("epoch", furthest.epoch if furthest else None)
        yield gauge("planned_epochs", furthest.epochs or None if furthest else None)
        yield gauge("progress_ratio", step / planned if planned else None)
        left_s = (planned - step) / steps_per_s if planned and steps_per_s else None
        yield gauge("remaining_seconds", left_s)
        yield gauge("last_step_timestamp_seconds", newest.get("time_unix_s", self._first_at))
        yield gauge("samples_per_second", samples_per_s)
        tokens = self._tokens_per_sample
        tokens_per_s = samples_per_s * tokens if samples_per_s and tokens else None
        yield gauge("tokens_per_second", tokens_per_s)
        yield gauge("loss", newest.get("loss"))
        yield gauge("accuracy", self._accuracy)
        yield gauge("training_accuracy", newest.get("logged", {}).get("accuracy"))
        yield gauge("gradient_norm", newest.get("norm"))
        yield gauge("learning_rate", newest.get("lr"))

    @property
    def _first_at(self) -> float | None:
        """Time at which the first step and checkpoint count as committed; None for scripts."""
        return self._started_at if self._records_progress else None

    def _checkpointing(self) -> Iterator[Family]:
        at = self._checkpoint.get("time_unix_s", self._first_at)
        yield gauge("checkpoint_step", self._checkpoint.get("step"))
        yield gauge("last_checkpoint_timestamp_seconds", at)
        yield gauge("checkpoint_size_bytes", self._checkpoint_bytes)

    def _recovering(self) -> Iterator[Family]:
        yield gauge("restart_budget", self._restart_limit)
        yield gauge("restart_budget_used", len(self._failures.until(time.time())))

    def _running(self) -> Iterator[Family]:
        stage = Stage.IDLE if self._state is None else self._state.stage
        names = self._run_dir.resolve().name, self._job
        yield gauges("run_info", [(names, 1)])
        yield gauge("run_start_timestamp_seconds", self._started_at)
        yield gauges("run_stage", (((each.name.lower(),), each is stage) for each in Stage))
        yield gauge("generation", self._generation)
        counts = {"member": len(self._workers.members), "standby": len(self._workers.standby)}
        yield gauges("workers", (((each,), count) for each, count in counts.items()))
        yield gauge("desired_workers", self._desired_workers)


class SystemMetrics:
    """Collects the metrics of hosts and their GPUs.

    Args:
        run_dir: The run's directory, with the samples of this host or of all.
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = SystemFile(run_dir)

    def collect(self) -> Iterator[Family]:
        """Give all metrics; see `prometheus_client.registry.Collector`."""
        oldest = time.time() - MAX_AGE_S
        samples = [each for each in self._file.newest().values() if each.time_unix_s > oldest]
        for name, field in _OF_HOST.items():
            yield gauges(name, (((each.host,), getattr(each, field)) for each in samples))
        gpus = [((each.host, str(gpu.index)), gpu) for each in samples for gpu in each.gpus]
        yield gauges("gpu_info", (((*labels, gpu.name), 1) for labels, gpu in gpus))
        for name, field in _OF_GPU.items():
            yield gauges(name, ((labels, getattr(gpu, field)) for labels, gpu in gpus))
        workers = [((each.host, str(one.rank)), one) for each in samples for one in each.workers]
        for name, field in _OF_WORKER.items():
            yield gauges(name, ((labels, getattr(one, field)) for labels, one in workers))


def _cause_of(report: RecoveryReport) -> str:
    """First failure, in a word."""
    first = report.causes[0]
    if first.rank is None:
        return first.who
    return "worker-hung" if first.what.startswith("hung") else "worker"


def _balance(steps: RecentSteps) -> Iterator[Family]:
    """Shards and speed of each worker, from the times of the newest steps."""
    rows = breakdown.rows(steps.lines, BALANCE_STEPS)
    ranks = [(str(int(row["rank"])),) for row in rows]
    busy_s = [breakdown.busy_s(row) for row in rows]
    speeds = [row["shards"] / busy if busy else 0.0 for row, busy in zip(rows, busy_s, strict=True)]
    shards = [row["shards"] for row in rows]
    yield gauges("worker_shards", zip(ranks, shards, strict=True))
    fastest = max(speeds, default=0.0)
    relative = [speed / fastest if fastest else None for speed in speeds]
    yield gauges("worker_speed_ratio", zip(ranks, relative, strict=True))
    yield gauge("imbalance_ratio", breakdown.imbalance(busy_s))


def _of_kind(kind: str) -> list[str]:
    return [name for name, each in METRICS.items() if each.kind == kind]


def counter(name: str) -> Counter:
    """A counter that is in no registry; it begins with 0 for each of the values of its label, so
    that the first rise is seen.
    """
    _omit_times_of_creation()
    metric = METRICS[name]
    made = Counter(metric.name, metric.text, metric.labels, registry=None)
    for value in metric.values:
        made.labels(value)
    return made


def histogram(name: str) -> Histogram:
    """A histogram that is in no registry."""
    _omit_times_of_creation()
    metric = METRICS[name]
    return Histogram(metric.name, metric.text, buckets=metric.buckets, registry=None)


def gauge(name: str, value: float | None) -> Family:
    """A gauge without labels; None if it is not known."""
    return gauges(name, [((), value)])


def gauges(name: str, values: Iterable[tuple[tuple[str, ...], float | None]]) -> Family:
    """A gauge with labels.

    Args:
        name: The gauge's, without the prefix of all.
        values: The values of its labels, and its own; None where it is not known.
    """
    metric = METRICS[name]
    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _omit_times_of_creation() -> None:
    """The client adds a gauge for each counter, which nothing here reads."""
    disable_created_metrics()  # type: ignore[no-untyped-call]


_OF_HOST: Final[dict[str, str]] = {
    "host_cpu_ratio": "cpu",
    "host_load": "load",
    "host_memory_used_bytes": "memory_bytes",
    "host_memory_limit_bytes": "memory_total_bytes",
    "host_network_receive_bytes_per_second": "network_receive_bytes_per_s",
    "host_network_transmit_bytes_per_second": "network_transmit_bytes_per_s",
    "host_disk_read_bytes_per_second": "disk_read_bytes_per_s",
    "host_disk_write_bytes_per_second": "disk_write_bytes_per_s",
    "host_sample_timestamp_seconds": "time_unix_s",
}
"""The field of a sample for each metric."""
_OF_GPU: Final[dict[str, str]] = {
    "gpu_utilization_ratio": "utilization",
    "gpu_memory_used_bytes": "memory_bytes",
    "gpu_memory_limit_bytes": "memory_total_bytes",
    "gpu_temperature_celsius": "temperature_c",
    "gpu_power_watts": "power_w",
}
_OF_WORKER: Final[dict[str, str]] = {
    "worker_cpu_cores": "cpu",
    "worker_memory_bytes": "memory_bytes",
}
