"""`holdfast metrics`: print what Prometheus and Grafana need for runs with --metrics."""

from __future__ import annotations

import typer

from holdfast.sinks.prometheus import catalogue, files

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
    print(files.alert_rules(), end="")


@app.command("grafana")
def grafana() -> None:
    """Print a dashboard for Grafana, in JSON."""
    print(files.grafana_dashboard(), end="")
