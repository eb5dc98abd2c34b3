"""Alerts: what a person should look at in a run, and from which value on.

`record.views.alerts` evaluates these rules on the record of a run, Prometheus those of
`prometheus/alerts.yaml`, which a test holds to these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """A rule.

    Attributes:
        name: Name of the alert.
        title: State that must not be, for people.
        limit: The value past which it is.
        lasts_s: For how long, seconds, until it is an alert; 0: at once.
        severity: Urgency with which a person should look at it.
        remedy: Advice.
    """

    name: str
    title: str
    limit: float
    lasts_s: float = 0.0
    severity: Literal["critical", "warning"]
    remedy: str


NO_STEP: Final = AlertRule(
    name="NoStep",
    title="No step for 5 min",
    limit=300,
    severity="critical",
    remedy="See holdfast events, and what the run waits for on its terminal.",
)
WORKER_LOST: Final = AlertRule(
    name="WorkerLost",
    title="Worker lost for 2 min",
    limit=0,
    lasts_s=120,
    severity="warning",
    remedy="See holdfast events; let another host join by holdfast token.",
)
RESTART_BUDGET: Final = AlertRule(
    name="RestartBudgetNearlySpent",
    title="Restart budget 80 % spent",
    limit=0.8,
    severity="critical",
    remedy="Find out what fails, by holdfast events; one failure too many ends the run.",
)
CHECKPOINT_AGE: Final = AlertRule(
    name="CheckpointTooOld",
    title="Checkpoint older than 1 h",
    limit=3600,
    severity="warning",
    remedy="Set checkpoint.every_s or every_steps lower, or see why none is written.",
)
CHECKPOINT_FAILURES: Final = AlertRule(
    name="CheckpointsFail",
    title="Checkpoint failed within 15 min",
    limit=900,
    severity="critical",
    remedy="See holdfast events; the disk may be full, damaged or unreachable.",
)
IMBALANCE: Final = AlertRule(
    name="Imbalance",
    title="Imbalance > 20 % for 10 min",
    limit=0.2,
    lasts_s=600,
    severity="warning",
    remedy="See holdfast breakdown; balance=dynamic divides shards by speed.",
)
GPU_UTILIZATION: Final = AlertRule(
    name="GpuUnderused",
    title="GPU utilization < 50 % for 10 min",
    limit=0.5,
    lasts_s=600,
    severity="warning",
    remedy="See holdfast breakdown for what the run is bound by.",
)
GPU_TEMPERATURE: Final = AlertRule(
    name="GpuHot",
    title="GPU > 85 °C for 5 min",
    limit=85,
    lasts_s=300,
    severity="warning",
    remedy="See to its cooling; heat slows it down.",
)
CHECKPOINT_FAILURE_CAUSES: Final = {
    "checkpoint-failed": "not-written",
    "checkpoint-not-collected": "not-collected",
    "checkpoint-corrupt": "corrupt",
    "checkpoint-unreadable": "unreadable",
    "checkpoint-rejected": "rejected",
    "retention-failed": "not-deleted",
}
"""The events of checkpoints that fail, and the word for each."""
