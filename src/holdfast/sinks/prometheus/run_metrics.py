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
from holdfast.sinks.prometheus import catalogue
from holdfast.sinks.prometheus.catalogue import CatalogueMetric
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
        self._step_seconds = histogram(catalogue.STEP_SECONDS)
        self._samples = counter(catalogue.SAMPLES)
        self._skipped = counter(catalogue.SKIPPED_STEPS)
        self._phases = counter(catalogue.PHASE_SECONDS)
        self._save_seconds = histogram(catalogue.SAVE_SECONDS)
        self._checkpoints = counter(catalogue.CHECKPOINTS)
        self._checkpoint_failures = counter(
            catalogue.CHECKPOINT_FAILURES, catalogue.CHECKPOINT_CAUSES
        )
        self._recoveries = counter(catalogue.RECOVERIES, catalogue.CAUSES)
        self._recovery_seconds = histogram(catalogue.RECOVERY_SECONDS)
        self._recovery_stages = counter(catalogue.RECOVERY_STAGE_SECONDS, catalogue.STAGES)
        self._recomputed_steps = counter(catalogue.RECOMPUTED_STEPS)
        self._recomputed_samples = counter(catalogue.RECOMPUTED_SAMPLES)
        self._slowdowns = counter(catalogue.SLOWDOWNS, catalogue.SLOWDOWN_CAUSES)
        self._evictions = counter(catalogue.EVICTIONS)

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
            self._recoveries.labels(_cause_of(report)).inc()
            self._recovery_seconds.observe(report.total_s)
            for stage, seconds in report.seconds.items():
                self._recovery_stages.labels(stage.replace(" ", "_")).inc(seconds)
            self._recomputed_steps.inc(report.recomputed_steps)
            self._recomputed_samples.inc(report.recomputed_samples)

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
            for each in (
                *(self._step_seconds, self._samples, self._skipped, self._phases),
                *(self._save_seconds, self._checkpoints, self._checkpoint_failures),
                *(self._recoveries, self._recovery_seconds, self._recovery_stages),
                *(self._recomputed_steps, self._recomputed_samples),
                *(self._slowdowns, self._evictions),
            ):
                families += each.collect()
        yield from families

    def _on_step(self, line: Mapping[str, Any]) -> None:
        self._steps.take(line)
        self._samples.inc(line.get("samples", 0))
        self._skipped.inc(bool(line.get("skipped")))
        if line.get("seconds") is not None:
            self._step_seconds.observe(line["seconds"])
        workers = line.get("workers") or {}
        for name, seconds in workers.items():
            if name in ("rank", "shards", "link"):  # a link's wait is part of another phase
                continue
            for rank, each in zip(workers["rank"], seconds, strict=False):
                self._phases.labels(rank, name).inc(each)
        saved_s = max(workers.get("checkpoint", ()), default=0.0)
        if saved_s:
            self._save_seconds.observe(saved_s)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "worker-evicted" and event["rank"] not in self._workers.standby:
            self._evictions.inc()
        self._workers.take(event)
        self._failures.take(event)
        match event["event"]:
            case "run-started":
                self._started_at = event["time_unix_s"]
            case "generation-started":
                self._generation = event["number"]
            case "worker-slowed":
                self._slowdowns.labels(event["reason"]).inc()
            case "link-slowed":
                self._slowdowns.labels("link").inc()
            case "checkpoint-committed" if event["step"] != self._checkpoint.get("step"):
                self._checkpoint = event
                self._checkpoints.inc()
                name = Path(event["directory"]).name
                self._checkpoint_bytes = size_bytes(self._run_dir / "checkpoints" / name)
            case name if name in CHECKPOINT_FAILURE_CAUSES:
                self._checkpoint_failures.labels(CHECKPOINT_FAILURE_CAUSES[name]).inc()

    def _training(self) -> Iterator[Family]:
        newest = self._steps.newest
        furthest = live_state.furthest([*self._state.progress.values()] if self._state else [])
        planned = furthest.total_steps or None if furthest else None
        step = max(newest.get("step", 0), furthest.step if furthest else 0)
        steps_per_s, samples_per_s = self._steps.pace() or (None, None)
        yield gauge(catalogue.STEP, step)
        yield gauge(catalogue.PLANNED_STEPS, planned)
        yield gauge(catalogue.EPOCH, furthest.epoch if furthest else None)
        yield gauge(catalogue.PLANNED_EPOCHS, furthest.epochs or None if furthest else None)
        yield gauge(catalogue.PROGRESS, step / planned if planned else None)
        left_s = (planned - step) / steps_per_s if planned and steps_per_s else None
        yield gauge(catalogue.REMAINING, left_s)
        yield gauge(catalogue.LAST_STEP, newest.get("time_unix_s", self._first_at))
        yield gauge(catalogue.SAMPLES_PER_SECOND, samples_per_s)
        tokens = self._tokens_per_sample
        tokens_per_s = samples_per_s * tokens if samples_per_s and tokens else None
        yield gauge(catalogue.TOKENS_PER_SECOND, tokens_per_s)
        yield gauge(catalogue.LOSS, newest.get("loss"))
        yield gauge(catalogue.ACCURACY, self._accuracy)
        yield gauge(catalogue.TRAINING_ACCURACY, newest.get("logged", {}).get("accuracy"))
        yield gauge(catalogue.GRADIENT_NORM, newest.get("norm"))
        yield gauge(catalogue.LEARNING_RATE, newest.get("lr"))

    @property
    def _first_at(self) -> float | None:
        """Time at which the first step and checkpoint count as committed; None for scripts."""
        return self._started_at if self._records_progress else None

    def _checkpointing(self) -> Iterator[Family]:
        at = self._checkpoint.get("time_unix_s", self._first_at)
        yield gauge(catalogue.CHECKPOINT_STEP, self._checkpoint.get("step"))
        yield gauge(catalogue.LAST_CHECKPOINT, at)
        yield gauge(catalogue.CHECKPOINT_BYTES, self._checkpoint_bytes)

    def _recovering(self) -> Iterator[Family]:
        yield gauge(catalogue.RESTART_BUDGET, self._restart_limit)
        yield gauge(catalogue.RESTART_BUDGET_USED, len(self._failures.until(time.time())))

    def _running(self) -> Iterator[Family]:
        stage = Stage.IDLE if self._state is None else self._state.stage
        names = self._run_dir.resolve().name, self._job
        yield gauges(catalogue.RUN_INFO, [(names, 1)])
        yield gauge(catalogue.RUN_START, self._started_at)
        stages = (((name,), name == stage.name.lower()) for name in catalogue.RUN_STAGES)
        yield gauges(catalogue.RUN_STAGE, stages)
        yield gauge(catalogue.GENERATION, self._generation)
        counts = {"member": len(self._workers.members), "standby": len(self._workers.standby)}
        yield gauges(catalogue.WORKERS, (((each,), count) for each, count in counts.items()))
        yield gauge(catalogue.DESIRED_WORKERS, self._desired_workers)


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
        for metric, field in _OF_HOST.items():
            yield gauges(metric, (((each.host,), getattr(each, field)) for each in samples))
        gpus = [((each.host, str(gpu.index)), gpu) for each in samples for gpu in each.gpus]
        yield gauges(catalogue.GPU_INFO, (((*labels, gpu.name), 1) for labels, gpu in gpus))
        for metric, field in _OF_GPU.items():
            yield gauges(metric, ((labels, getattr(gpu, field)) for labels, gpu in gpus))
        workers = [((each.host, str(one.rank)), one) for each in samples for one in each.workers]
        for metric, field in _OF_WORKER.items():
            yield gauges(metric, ((labels, getattr(one, field)) for labels, one in workers))


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
    yield gauges(catalogue.WORKER_SHARDS, zip(ranks, shards, strict=True))
    fastest = max(speeds, default=0.0)
    relative = [speed / fastest if fastest else None for speed in speeds]
    yield gauges(catalogue.WORKER_SPEED, zip(ranks, relative, strict=True))
    yield gauge(catalogue.IMBALANCE, breakdown.imbalance(busy_s))


def counter(metric: CatalogueMetric, values: Iterable[str] = ()) -> Counter:
    """A counter that is in no registry; it begins with 0 for each of the values of its label, so
    that the first rise is seen.
    """
    _omit_times_of_creation()
    made = Counter(metric.name, metric.text, metric.labels, registry=None)
    for value in values:
        made.labels(value)
    return made


def histogram(metric: CatalogueMetric) -> Histogram:
    """A histogram that is in no registry."""
    _omit_times_of_creation()
    return Histogram(metric.name, metric.text, buckets=metric.buckets, registry=None)


def gauge(metric: CatalogueMetric, value: float | None) -> Family:
    """A gauge without labels; None if it is not known."""
    return gauges(metric, [((), value)])


def gauges(
    metric: CatalogueMetric, values: Iterable[tuple[tuple[str, ...], float | None]]
) -> Family:
    """A gauge with labels.

    Args:
        metric: The gauge.
        values: The values of its labels, and its own; None where it is not known.
    """
    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _omit_times_of_creation() -> None:
    """The client adds a gauge for each counter, which nothing here reads."""
    disable_created_metrics()  # type: ignore[no-untyped-call]


_OF_HOST: Final[dict[CatalogueMetric, str]] = {
    catalogue.HOST_CPU: "cpu",
    catalogue.HOST_LOAD: "load",
    catalogue.HOST_MEMORY: "memory_bytes",
    catalogue.HOST_MEMORY_LIMIT: "memory_total_bytes",
    catalogue.HOST_RECEIVE: "network_receive_bytes_per_s",
    catalogue.HOST_TRANSMIT: "network_transmit_bytes_per_s",
    catalogue.HOST_READ: "disk_read_bytes_per_s",
    catalogue.HOST_WRITE: "disk_write_bytes_per_s",
    catalogue.HOST_SAMPLED: "time_unix_s",
}
"""The field of a sample for each metric."""
_OF_GPU: Final[dict[CatalogueMetric, str]] = {
    catalogue.GPU_UTILIZATION: "utilization",
    catalogue.GPU_MEMORY: "memory_bytes",
    catalogue.GPU_MEMORY_LIMIT: "memory_total_bytes",
    catalogue.GPU_TEMPERATURE: "temperature_c",
    catalogue.GPU_POWER: "power_w",
}
_OF_WORKER: Final[dict[CatalogueMetric, str]] = {
    catalogue.WORKER_CPU: "cpu",
    catalogue.WORKER_MEMORY: "memory_bytes",
}
