"""Alerts for Prometheus: the rules of `observe.alerts` in PromQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from holdfast.record import alert_rules
from holdfast.record.alert_rules import AlertRule
from holdfast.sinks.prometheus import catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class PromAlert:
    """A rule in Prometheus' words.

    Attributes:
        rule: The rule.
        expr: What must not be, in PromQL.
        summary: What has happened, a sentence, with labels in Prometheus' templates.
    """

    rule: AlertRule
    expr: str
    summary: str

    @property
    def name(self) -> str:
        """The name among the alerts of all that Prometheus watches."""
        return f"Holdfast{self.rule.name}"


ALERTS: Final = (
    PromAlert(
        rule=alert_rules.NO_STEP,
        expr=f"time() - {catalogue.LAST_STEP.name} > {alert_rules.NO_STEP.limit}",
        summary="No step was committed for {{ $value | humanizeDuration }}.",
    ),
    PromAlert(
        rule=alert_rules.WORKER_LOST,
        expr=f"sum without (state) ({catalogue.WORKERS.name}) < {catalogue.DESIRED_WORKERS.name}",
        summary="Only {{ $value }} workers train or are on standby: one was lost and not replaced.",
    ),
    PromAlert(
        rule=alert_rules.RESTART_BUDGET,
        expr=f"{catalogue.RESTART_BUDGET_USED.name} / ({catalogue.RESTART_BUDGET.name} > 0) "
        f">= {alert_rules.RESTART_BUDGET.limit}",
        summary="{{ $value | humanizePercentage }} of the restart budget is used.",
    ),
    PromAlert(
        rule=alert_rules.CHECKPOINT_AGE,
        expr=f"time() - {catalogue.LAST_CHECKPOINT.name} > {alert_rules.CHECKPOINT_AGE.limit}",
        summary="The newest checkpoint is {{ $value | humanizeDuration }} old.",
    ),
    PromAlert(
        rule=alert_rules.CHECKPOINT_FAILURES,
        expr=f"increase({catalogue.CHECKPOINT_FAILURES.name}"
        f"[{alert_rules.CHECKPOINT_FAILURES.limit:.0f}s]) > 0",
        summary="Checkpoints failed within 15 minutes: {{ $labels.cause }}.",
    ),
    PromAlert(
        rule=alert_rules.IMBALANCE,
        expr=f"{catalogue.IMBALANCE.name} > {alert_rules.IMBALANCE.limit}",
        summary="Workers wait {{ $value | humanizePercentage }} of their time for the slowest one.",
    ),
    PromAlert(
        rule=alert_rules.GPU_UTILIZATION,
        expr=f"{catalogue.GPU_UTILIZATION.name} < {alert_rules.GPU_UTILIZATION.limit}",
        summary="GPU {{ $labels.gpu }} of {{ $labels.host }} computes "
        "{{ $value | humanizePercentage }} of the time.",
    ),
    PromAlert(
        rule=alert_rules.GPU_TEMPERATURE,
        expr=f"{catalogue.GPU_TEMPERATURE.name} > {alert_rules.GPU_TEMPERATURE.limit}",
        summary="GPU {{ $labels.gpu }} of {{ $labels.host }} has {{ $value }} °C.",
    ),
)
"""All rules."""


def file() -> str:
    """A file of rules."""
    return yaml.safe_dump(rules(), sort_keys=False, allow_unicode=True, width=100)


def rules() -> dict[str, Any]:
    """The content of a file of rules."""
    return {"groups": [{"name": "holdfast", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: PromAlert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": f"{alert.rule.lasts_s:.0f}s",
        "labels": {"severity": alert.rule.severity},
        "annotations": {"summary": alert.summary, "description": alert.rule.remedy},
    }
