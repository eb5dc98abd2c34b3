"""Grafana: a dashboard of a run, from its metrics in Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.sinks.prometheus import catalogue

UID: Final = "holdfast-run"
SCHEMA_VERSION: Final = 39
"""Of Grafana 11; newer ones take it."""
WIDTH: Final = 24
"""Columns of a dashboard."""
_PANEL_WIDTH, _PANEL_HEIGHT = 8, 7
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_RUN: Final = 'job="$job",instance=~"$instance"'
"""Chooses the run: the variables at the top of the dashboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel with a graph.

    Attributes:
        title: Of the panel.
        queries: PromQL by the legend of its lines; `RUN` in it chooses the run.
        unit: Of the values, as Grafana calls it.
    """

    title: str
    queries: Mapping[str, str]
    unit: str = "short"


def _of(metric: catalogue.Metric) -> str:
    return metric.name + "{RUN}"


def _share(part: catalogue.Metric, whole: catalogue.Metric) -> str:
    return f"{_of(part)} / {_of(whole)}"


def _rate(metric: catalogue.Metric, suffix: str = "") -> str:
    return f"rate({metric.name}{suffix}{{RUN}}[$__rate_interval])"


def _quantiles(metric: catalogue.Metric) -> dict[str, str]:
    rate = f"sum by (le) ({_rate(metric, '_bucket')})"
    return {name: f"histogram_quantile({q}, {rate})" for name, q in _QUANTILES.items()}


_QUANTILES: Final = {"half": 0.5, "95 %": 0.95, "99 %": 0.99}
_PHASE_SHARE: Final = f"sum by (phase) ({_rate(catalogue.PHASE_SECONDS)})"
_WAITS: Final = catalogue.PHASE_SECONDS.name + '{RUN,phase=~"wait|reduce|wait_reduce"}'

DASHBOARD: Final[Mapping[str, tuple[Panel, ...]]] = {
    "Training": (
        Panel(title="Loss", queries={"loss": _of(catalogue.LOSS)}),
        Panel(
            title="Accuracy",
            queries={
                "validation": _of(catalogue.ACCURACY),
                "training": _of(catalogue.TRAINING_ACCURACY),
            },
            unit="percentunit",
        ),
        Panel(
            title="Gradient norm and learning rate",
            queries={
                "gradient norm": _of(catalogue.GRADIENT_NORM),
                "learning rate": _of(catalogue.LEARNING_RATE),
            },
        ),
        Panel(title="Progress", queries={"committed": _of(catalogue.PROGRESS)}, unit="percentunit"),
        Panel(title="Time left", queries={"left": _of(catalogue.REMAINING)}, unit="s"),
        Panel(
            title="Workers",
            queries={
                "{{state}}": _of(catalogue.WORKERS),
                "desired": _of(catalogue.DESIRED_WORKERS),
            },
        ),
    ),
    "Throughput": (
        Panel(
            title="Samples a second",
            queries={"samples": _of(catalogue.SAMPLES_PER_SECOND)},
            unit="cps",
        ),
        Panel(title="Step", queries=_quantiles(catalogue.STEP_SECONDS), unit="s"),
        Panel(title="Time of all workers by phase", queries={"{{phase}}": _PHASE_SHARE}, unit="s"),
    ),
    "Communication": (
        Panel(
            title="Waits and reduction by worker",
            queries={"{{rank}} {{phase}}": f"rate({_WAITS}[$__rate_interval])"},
            unit="s",
        ),
        Panel(
            title="Received by hosts",
            queries={"{{host}}": _of(catalogue.HOST_RECEIVE)},
            unit="Bps",
        ),
        Panel(
            title="Sent by hosts", queries={"{{host}}": _of(catalogue.HOST_TRANSMIT)}, unit="Bps"
        ),
    ),
    "Balance": (
        Panel(title="Shards", queries={"rank {{rank}}": _of(catalogue.WORKER_SHARDS)}),
        Panel(
            title="Speed, compared with the fastest worker",
            queries={"rank {{rank}}": _of(catalogue.WORKER_SPEED)},
            unit="percentunit",
        ),
        Panel(
            title="Imbalance", queries={"imbalance": _of(catalogue.IMBALANCE)}, unit="percentunit"
        ),
    ),
    "GPUs": (
        Panel(
            title="Utilization",
            queries={"{{host}} {{gpu}}": _of(catalogue.GPU_UTILIZATION)},
            unit="percentunit",
        ),
        Panel(
            title="Temperature",
            queries={"{{host}} {{gpu}}": _of(catalogue.GPU_TEMPERATURE)},
            unit="celsius",
        ),
        Panel(title="Power", queries={"{{host}} {{gpu}}": _of(catalogue.GPU_POWER)}, unit="watt"),
        Panel(
            title="Memory in use",
            queries={"{{host}} {{gpu}}": _share(catalogue.GPU_MEMORY, catalogue.GPU_MEMORY_LIMIT)},
            unit="percentunit",
        ),
    ),
    "System": (
        Panel(title="CPU", queries={"{{host}}": _of(catalogue.HOST_CPU)}, unit="percentunit"),
        Panel(title="Load", queries={"{{host}}": _of(catalogue.HOST_LOAD)}),
        Panel(
            title="Memory in use",
            queries={"{{host}}": _share(catalogue.HOST_MEMORY, catalogue.HOST_MEMORY_LIMIT)},
            unit="percentunit",
        ),
        Panel(
            title="Disks",
            queries={
                "{{host}} read": _of(catalogue.HOST_READ),
                "{{host}} write": _of(catalogue.HOST_WRITE),
            },
            unit="Bps",
        ),
        Panel(title="Cores of workers", queries={"rank {{rank}}": _of(catalogue.WORKER_CPU)}),
        Panel(
            title="Memory of workers",
            queries={"rank {{rank}}": _of(catalogue.WORKER_MEMORY)},
            unit="bytes",
        ),
    ),
    "Checkpoints": (
        Panel(
            title="Age",
            queries={"age": f"time() - {_of(catalogue.LAST_CHECKPOINT)}"},
            unit="s",
        ),
        Panel(title="Save", queries=_quantiles(catalogue.SAVE_SECONDS), unit="s"),
        Panel(title="Size", queries={"size": _of(catalogue.CHECKPOINT_BYTES)}, unit="bytes"),
        Panel(title="Failures", queries={"{{cause}}": _of(catalogue.CHECKPOINT_FAILURES)}),
    ),
    "Recovery": (
        Panel(title="Recoveries", queries={"{{cause}}": _of(catalogue.RECOVERIES)}),
        Panel(title="Recovery", queries=_quantiles(catalogue.RECOVERY_SECONDS), unit="s"),
        Panel(
            title="Time by stage",
            queries={"{{stage}}": _of(catalogue.RECOVERY_STAGE_SECONDS)},
            unit="s",
        ),
        Panel(
            title="Restart budget",
            queries={
                "used": _of(catalogue.RESTART_BUDGET_USED),
                "tolerated": _of(catalogue.RESTART_BUDGET),
            },
        ),
    ),
}
"""The panels in rows."""


def file() -> str:
    """The dashboard as a file."""
    return json.dumps(dashboard(), indent=1) + "\n"


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": UID,
        "title": "holdfast: a run",
        "tags": ["holdfast"],
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    info = catalogue.RUN_INFO.name
    chosen = {
        "job": f"label_values({info}, job)",
        "instance": f'label_values({info}{{job="$job"}}, instance)',
    }
    for name, query in chosen.items():
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": query,
            "refresh": 2,
            "sort": 1,
        }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row, panels in DASHBOARD.items():
        number += 1
        where = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row, "gridPos": where, "panels": []}
        top += 1
        per_line = WIDTH // _PANEL_WIDTH
        for place, panel in enumerate(panels):
            number += 1
            line, column = divmod(place, per_line)
            where = {
                "x": column * _PANEL_WIDTH,
                "y": top + line * _PANEL_HEIGHT,
                "w": _PANEL_WIDTH,
                "h": _PANEL_HEIGHT,
            }
            yield _panel(number, panel, where)
        top += -(-len(panels) // per_line) * _PANEL_HEIGHT


def _panel(number: int, panel: Panel, where: Mapping[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "expr": query.replace("RUN", _RUN),
            "legendFormat": legend,
            "datasource": _SOURCE,
        }
        for place, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "gridPos": where,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
    }
