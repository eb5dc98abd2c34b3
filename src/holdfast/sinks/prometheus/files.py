"""Files for those who watch runs: rules for Prometheus, and a dashboard for Grafana.

A test holds the rules to `record.alert_rules`, and the metrics of both to the catalogue.
"""

from __future__ import annotations

from pathlib import Path


def alert_rules() -> str:
    """Rules of Prometheus, in YAML."""
    return Path(__file__).with_name("alerts.yaml").read_text(encoding="utf-8")


def grafana_dashboard() -> str:
    """A dashboard of a run as Grafana imports it, in JSON."""
    return Path(__file__).with_name("grafana.json").read_text(encoding="utf-8")
