"""Alerts: rules for Prometheus about what a person should look at in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.observe.prometheus import catalogue

NO_STEP_S: Final = 300
"""Seconds without a step."""
MIN_GPU_UTILIZATION: Final = 0.5
MAX_GPU_CELSIUS: Final = 85
MAX_BUDGET_USED: Final = 0.8
"""The share of the restart budget that is used."""
MAX_CHECKPOINT_AGE_S: Final = 3600
MAX_IMBALANCE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule.

    Attributes:
        name: Of the alert.
        expr: What must not be, in PromQL.
        lasts: For how long, in Prometheus' words, until it is an alert; `0m`: at once.
        severity: How soon a person should look at it.
        summary: What has happened, a sentence, with labels in Prometheus' templates.
        remedy: What to do.
    """

    name: str
    expr: str
    lasts: str
    severity: Literal["critical", "warning"]
    summary: str
    remedy: str


ALERTS: Final = (
    Alert(
        name="HoldfastNoStep",
        expr=f"time() - {catalogue.LAST_STEP.name} > {NO_STEP_S}",
        lasts="0m",
        severity="critical",
        summary="No step was committed for {{ $value | humanizeDuration }}.",
        remedy="See holdfast events, and what the run waits for on its terminal.",
    ),
    Alert(
        name="HoldfastWorkerLost",
        expr=f"sum without (state) ({catalogue.WORKERS.name}) < {catalogue.DESIRED_WORKERS.name}",
        lasts="2m",
        severity="warning",
        summary="Only {{ $value }} workers train or are on standby: one was lost and not replaced.",
        remedy="See holdfast events; let another host join by holdfast token.",
    ),
    Alert(
        name="HoldfastRestartBudgetNearlySpent",
        expr=f"{catalogue.RESTART_BUDGET_USED.name} / ({catalogue.RESTART_BUDGET.name} > 0) "
        f">= {MAX_BUDGET_USED}",
        lasts="0m",
        severity="critical",
        summary="{{ $value | humanizePercentage }} of the restart budget is used.",
        remedy="Find out what fails, by holdfast events; one failure too many ends the run.",
    ),
    Alert(
        name="HoldfastCheckpointTooOld",
        expr=f"time() - {catalogue.LAST_CHECKPOINT.name} > {MAX_CHECKPOINT_AGE_S}",
        lasts="0m",
        severity="warning",
        summary="The newest checkpoint is {{ $value | humanizeDuration }} old.",
        remedy="Set checkpoint.every_s or every_steps lower, or see why none is written.",
    ),
    Alert(
        name="HoldfastCheckpointsFail",
        expr=f"increase({catalogue.CHECKPOINT_FAILURES.name}[15m]) > 0",
        lasts="0m",
        severity="critical",
        summary="Checkpoints failed within 15 minutes: {{ $labels.cause }}.",
        remedy="See holdfast events; the disk may be full, damaged or unreachable.",
    ),
    Alert(
        name="HoldfastImbalance",
        expr=f"{catalogue.IMBALANCE.name} > {MAX_IMBALANCE}",
        lasts="10m",
        severity="warning",
        summary="Workers wait {{ $value | humanizePercentage }} of their time for the slowest one.",
        remedy="See holdfast breakdown; balance=dynamic divides shards by speed.",
    ),
    Alert(
        name="HoldfastGpuUnderused",
        expr=f"{catalogue.GPU_UTILIZATION.name} < {MIN_GPU_UTILIZATION}",
        lasts="10m",
        severity="warning",
        summary="GPU {{ $labels.gpu }} of {{ $labels.host }} computes "
        "{{ $value | humanizePercentage }} of the time.",
        remedy="See holdfast breakdown for what the run is bound by.",
    ),
    Alert(
        name="HoldfastGpuHot",
        expr=f"{catalogue.GPU_TEMPERATURE.name} > {MAX_GPU_CELSIUS}",
        lasts="5m",
        severity="warning",
        summary="GPU {{ $labels.gpu }} of {{ $labels.host }} has {{ $value }} °C.",
        remedy="See to its cooling; heat slows it down.",
    ),
)
"""All rules."""


def rules() -> dict[str, Any]:
    """The content of a rule file."""
    return {"groups": [{"name": "holdfast", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.remedy},
    }
