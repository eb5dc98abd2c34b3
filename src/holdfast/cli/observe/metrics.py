"""`holdfast metrics`: print what Prometheus and Grafana need for runs with --metrics."""

from __future__ import annotations

import typer

from holdfast.sinks.prometheus import alerts as rules
from holdfast.sinks.prometheus import catalogue
from holdfast.sinks.prometheus import grafana as dashboards

app = typer.Typer(
    help="Print what Prometheus and Grafana need for runs with --metrics.", no_args_is_help=True
)


@app.command("list")
def list_metrics() -> None:
    """Print all metrics, as tables in Markdown."""
    for line in catalogue.table():
        print(line)


@app.command("alerts")
def alerts() -> None:
    """Print alert rules for Prometheus, in YAML."""
    print(rules.file(), end="")


@app.command("grafana")
def grafana() -> None:
    """Print a dashboard for Grafana, in JSON."""
    print(dashboards.file(), end="")
