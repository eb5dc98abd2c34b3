"""Catalogue: all metrics that a run and its hosts have for Prometheus.

Names and units follow Prometheus' conventions (prometheus.io/docs/practices/naming). Every label
has few values: hosts, GPUs and ranks are those of the run, all others are listed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "holdfast_"

CAUSES: Final = ("worker", "worker-hung", "agent", "fork-server", "coordinator", "host")
"""Causes of a recovery: what failed first."""
STAGES: Final = ("found", "forked", "all_ready", "next_step", "back")
"""Stages of a recovery; see docs/recovery-reports.md."""
CHECKPOINT_CAUSES: Final = (
    "not-written", "not-collected", "corrupt", "unreadable", "rejected", "not-deleted",
)  # fmt: skip
"""Causes of a checkpoint's failure."""
SLOWDOWN_CAUSES: Final = ("data", "compute", "throttling", "contention", "link")
"""Why a worker slows down; see docs/breakdown.md."""
RUN_STAGES: Final = ("idle", "halt", "run", "end")
"""Stages of a generation; see `core.protocol.Stage`."""

_STEP_BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_RECOVERY_BUCKETS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_SAVE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueMetric:
    """A metric of the catalogue.

    Attributes:
        name: With the prefix of all.
        kind: Its type.
        text: Help text, a sentence.
        labels: The names of its labels.
        buckets: The upper bounds of a histogram, but for the last, which has none.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _gauge(name: str, text: str, *labels: str) -> CatalogueMetric:
    return CatalogueMetric(name=PREFIX + name, kind="gauge", text=text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CatalogueMetric:
    return CatalogueMetric(name=PREFIX + name, kind="counter", text=text, labels=labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> CatalogueMetric:
    return CatalogueMetric(name=PREFIX + name, kind="histogram", text=text, buckets=buckets)


STEP: Final = _gauge("step", "Steps committed.")
PLANNED_STEPS: Final = _gauge("planned_steps", "Steps of the whole run, if it has an end.")
EPOCH: Final = _gauge("epoch", "The current epoch, from 0.")
PLANNED_EPOCHS: Final = _gauge("planned_epochs", "Epochs of the whole run, if they end it.")
PROGRESS: Final = _gauge("progress_ratio", "The share of the planned steps that is committed.")
REMAINING: Final = _gauge("remaining_seconds", "Estimated time remaining at the recent step rate.")
LAST_STEP: Final = _gauge(
    "last_step_timestamp_seconds",
    "When the newest step was committed; before the first one, when the run was started.",
)
STEP_SECONDS: Final = _histogram("step_seconds", "Time from step to step.", _STEP_BUCKETS)
SAMPLES: Final = _counter("samples_total", "Samples of committed steps.")
SAMPLES_PER_SECOND: Final = _gauge("samples_per_second", "Samples a second, of the newest steps.")
TOKENS_PER_SECOND: Final = _gauge(
    "tokens_per_second", "Tokens a second, of the newest steps, if the data are text."
)
LOSS: Final = _gauge("loss", "Loss of the newest step; absent if it is not finite.")
ACCURACY: Final = _gauge("accuracy", "Accuracy of the newest evaluation, if it has one.")
TRAINING_ACCURACY: Final = _gauge(
    "training_accuracy", "Accuracy of the newest step on its own samples, if the task logs it."
)
GRADIENT_NORM: Final = _gauge(
    "gradient_norm", "Norm (L2) of the gradient in the newest step; absent if it is not finite."
)
LEARNING_RATE: Final = _gauge("learning_rate", "Learning rate of the newest step.")
SKIPPED_STEPS: Final = _counter(
    "skipped_steps_total", "Steps that changed nothing: their gradient was not finite."
)

PHASE_SECONDS: Final = _counter(
    "phase_seconds_total",
    "Time that a worker spent in a phase: compute in data, forward, backward, collect, optimizer; "
    "communication in wait, reduce, wait_reduce; evaluate, checkpoint.",
    "rank",
    "phase",
)

CHECKPOINT_STEP: Final = _gauge("checkpoint_step", "Step of the newest checkpoint.")
LAST_CHECKPOINT: Final = _gauge(
    "last_checkpoint_timestamp_seconds",
    "When the newest checkpoint was committed; before the first one, when the run was started.",
)
CHECKPOINT_BYTES: Final = _gauge("checkpoint_size_bytes", "Size of the newest checkpoint.")
SAVE_SECONDS: Final = _histogram(
    "checkpoint_save_seconds",
    "Time that the slowest worker spent on a checkpoint, counted in the step after it.",
    _SAVE_BUCKETS,
)
CHECKPOINTS: Final = _counter("checkpoints_total", "Checkpoints committed.")
CHECKPOINT_FAILURES: Final = _counter(
    "checkpoint_failures_total",
    "Checkpoints that could not be written, collected, read or deleted, or were damaged.",
    "cause",
)

RECOVERIES: Final = _counter("recoveries_total", "Recoveries, by what failed first.", "cause")
RECOVERY_SECONDS: Final = _histogram(
    "recovery_seconds", "Time from a failure to the next step.", _RECOVERY_BUCKETS
)
RECOVERY_STAGE_SECONDS: Final = _counter(
    "recovery_stage_seconds_total", "Time spent in the stages of recoveries.", "stage"
)
RECOMPUTED_STEPS: Final = _counter(
    "recomputed_steps_total", "Steps that recoveries have computed again."
)
RECOMPUTED_SAMPLES: Final = _counter(
    "recomputed_samples_total", "Samples that recoveries have computed again."
)
RESTART_BUDGET: Final = _gauge(
    "restart_budget", "Failures of workers and hosts that are tolerated within the window."
)
RESTART_BUDGET_USED: Final = _gauge(
    "restart_budget_used", "Failures of workers and hosts within the window."
)

WORKER_SHARDS: Final = _gauge(
    "worker_shards", "Shards of a worker, the mean of the newest steps.", "rank"
)
WORKER_SPEED: Final = _gauge(
    "worker_speed_ratio", "Speed of a worker in shards, compared with the fastest one.", "rank"
)
IMBALANCE: Final = _gauge(
    "imbalance_ratio",
    "The share of the time for shards that workers wait for the slowest one, in the mean.",
)
SLOWDOWNS: Final = _counter("slowdowns_total", "Workers or links that slowed down.", "cause")
EVICTIONS: Final = _counter("evictions_total", "Workers that went to standby.")

RUN_INFO: Final = _gauge("run_info", "1, with the names of the run and its job.", "run", "name")
RUN_START: Final = _gauge("run_start_timestamp_seconds", "When this start of the run was.")
RUN_STAGE: Final = _gauge(
    "run_stage", "1 for the stage of the run: idle, halt (recovers), run, or end.", "stage"
)
GENERATION: Final = _gauge("generation", "The current generation.")
WORKERS: Final = _gauge("workers", "Workers of the current generation, and on standby.", "state")
DESIRED_WORKERS: Final = _gauge("desired_workers", "Workers that the run should have.")

HOST_CPU: Final = _gauge("host_cpu_ratio", "The share of all cores that is busy.", "host")
HOST_LOAD: Final = _gauge("host_load", "Processes that run or wait, mean of a minute.", "host")
HOST_MEMORY: Final = _gauge("host_memory_used_bytes", "Memory in use.", "host")
HOST_MEMORY_LIMIT: Final = _gauge(
    "host_memory_limit_bytes", "Memory of the machine, or the limit of the container.", "host"
)
HOST_RECEIVE: Final = _gauge(
    "host_network_receive_bytes_per_second", "Received by all network interfaces.", "host"
)
HOST_TRANSMIT: Final = _gauge(
    "host_network_transmit_bytes_per_second", "Sent by all network interfaces.", "host"
)
HOST_READ: Final = _gauge("host_disk_read_bytes_per_second", "Read from all disks.", "host")
HOST_WRITE: Final = _gauge("host_disk_write_bytes_per_second", "Written to all disks.", "host")
HOST_SAMPLED: Final = _gauge("host_sample_timestamp_seconds", "When the host was sampled.", "host")
GPU_INFO: Final = _gauge("gpu_info", "1, with the name of the GPU.", "host", "gpu", "name")
GPU_UTILIZATION: Final = _gauge(
    "gpu_utilization_ratio", "The share of time in which a GPU computes.", "host", "gpu"
)
GPU_MEMORY: Final = _gauge("gpu_memory_used_bytes", "Memory of a GPU in use.", "host", "gpu")
GPU_MEMORY_LIMIT: Final = _gauge("gpu_memory_limit_bytes", "Memory of a GPU.", "host", "gpu")
GPU_TEMPERATURE: Final = _gauge("gpu_temperature_celsius", "Temperature of a GPU.", "host", "gpu")
GPU_POWER: Final = _gauge("gpu_power_watts", "Power that a GPU draws.", "host", "gpu")
WORKER_CPU: Final = _gauge("worker_cpu_cores", "Cores that a worker keeps busy.", "host", "rank")
WORKER_MEMORY: Final = _gauge(
    "worker_memory_bytes", "Resident memory of a worker, shared memory included.", "host", "rank"
)

GROUPS: Final[Mapping[str, tuple[CatalogueMetric, ...]]] = {
    "Training": (
        STEP, PLANNED_STEPS, EPOCH, PLANNED_EPOCHS, PROGRESS, REMAINING, LAST_STEP, STEP_SECONDS,
        SAMPLES, SAMPLES_PER_SECOND, TOKENS_PER_SECOND, LOSS, ACCURACY, TRAINING_ACCURACY,
        GRADIENT_NORM, LEARNING_RATE, SKIPPED_STEPS,
    ),
    "Phases and communication": (PHASE_SECONDS,),
    "Checkpoints": (
        CHECKPOINT_STEP, LAST_CHECKPOINT, CHECKPOINT_BYTES, SAVE_SECONDS, CHECKPOINTS,
        CHECKPOINT_FAILURES,
    ),
    "Recovery": (
        RECOVERIES, RECOVERY_SECONDS, RECOVERY_STAGE_SECONDS, RECOMPUTED_STEPS, RECOMPUTED_SAMPLES,
        RESTART_BUDGET, RESTART_BUDGET_USED,
    ),
    "Balance": (WORKER_SHARDS, WORKER_SPEED, IMBALANCE, SLOWDOWNS, EVICTIONS),
    "Run": (RUN_INFO, RUN_START, RUN_STAGE, GENERATION, WORKERS, DESIRED_WORKERS),
    "Hosts": (
        HOST_CPU, HOST_LOAD, HOST_MEMORY, HOST_MEMORY_LIMIT, HOST_RECEIVE, HOST_TRANSMIT, HOST_READ,
        HOST_WRITE, HOST_SAMPLED, WORKER_CPU, WORKER_MEMORY,
    ),
    "GPUs": (
        GPU_INFO, GPU_UTILIZATION, GPU_MEMORY, GPU_MEMORY_LIMIT, GPU_TEMPERATURE, GPU_POWER,
    ),
}  # fmt: skip
"""All metrics. A joined host has those of its GPUs and of itself."""


def table() -> Iterator[str]:
    """The catalogue in Markdown, a table a group, line by line."""
    for group, metrics in GROUPS.items():
        yield from (f"### {group}", "", "| metric | type | labels | |", "|---|---|---|---|")
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |"
        yield ""
