"""Alert rules fire past their thresholds and not before, as Prometheus' own tool sees it."""

import json
import re
import subprocess

import pytest
import yaml

from holdfast.record import alert_rules
from holdfast.record.alert_rules import AlertRule
from holdfast.sinks.prometheus import files
from holdfast.sinks.prometheus.catalogue import METRICS
from prometheus_tools import needs_prometheus

RULES = yaml.safe_load(files.alert_rules())["groups"][0]["rules"]
GPU = {"host": "h1", "gpu": "0"}


def series(name, values, /, **labels):
    pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{METRICS[name].name}{{{pairs}}}", "values": values}


def constant(name, value, /, **labels):
    return series(name, f"{value}x120", **labels)


CASES = {
    "HoldfastNoStep": (
        [constant("last_step_timestamp_seconds", 0)],
        ["5m", "5m1s"],
    ),
    "HoldfastCheckpointTooOld": (
        [constant("last_checkpoint_timestamp_seconds", 0)],
        ["60m", "60m1s"],
    ),
    "HoldfastWorkerLost": (
        [
            series("workers", "3x10 2x110", state="member"),
            constant("workers", 1, state="standby"),
            constant("desired_workers", 4),
        ],
        ["12m", "13m"],
    ),
    "HoldfastRestartBudgetNearlySpent": (
        [
            series("restart_budget_used", "7x10 8x110"),
            constant("restart_budget", 10),
        ],
        ["10m", "11m"],
    ),
    "HoldfastCheckpointsFail": (
        [series("checkpoint_failures_total", "0x10 1x110", cause="not-written")],
        ["10m", "11m"],
    ),
    "HoldfastImbalance": (
        [series("imbalance_ratio", "0.2x10 0.21x110")],
        ["20m", "21m"],
    ),
    "HoldfastGpuUnderused": (
        [series("gpu_utilization_ratio", "0.5x10 0.49x110", **GPU)],
        ["20m", "21m"],
    ),
    "HoldfastGpuHot": (
        [series("gpu_temperature_celsius", "85x10 86x110", **GPU)],
        ["15m", "16m"],
    ),
}
"""For each alert: what is measured every minute, the last time without the alert, and one with."""


@pytest.fixture
def promtool(tmp_path):
    """Test the rules: `promtool(tests) -> CompletedProcess`."""

    def run(tests):
        (tmp_path / "alerts.yaml").write_text(files.alert_rules())
        content = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1s", "tests": tests}
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump(content))
        command = ["promtool", "test", "rules", "tests.yaml"]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )

    return run


def count(name, n):
    """A test that an alert fires so often, whatever its labels are."""
    expr = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    return {"expr": expr, "exp_samples": [{"labels": "{}", "value": n}]}


def test_prometheus_has_the_rules_of_the_record():
    ours = {f"Holdfast{each.name}": each for each in vars(alert_rules).values()
            if isinstance(each, AlertRule)}  # fmt: skip
    assert len(RULES) == len(ours)
    assert {rule["alert"] for rule in RULES} == set(ours) == set(CASES)
    for rule in RULES:
        same = ours[rule["alert"]]
        assert rule["for"] == f"{same.lasts_s:.0f}s"
        assert rule["labels"] == {"severity": same.severity}
        assert rule["annotations"]["description"] == same.remedy
        limits = [float(each) for each in re.findall(r"(?:[<>]=? |\[)([\d.]+)", rule["expr"])]
        assert same.limit in limits or same is alert_rules.WORKER_LOST, rule["expr"]


def test_prometheus_and_grafana_read_metrics_that_exist():
    panels = json.loads(files.grafana_dashboard())["panels"]
    exprs = [each["expr"] for panel in panels for each in panel.get("targets", ())]
    exprs += [rule["expr"] for rule in RULES]
    named = set(re.findall(r"\bholdfast_\w+", " ".join(exprs)))
    known = {each.name + "_bucket" * (each.kind == "histogram") for each in METRICS.values()}
    assert len(named) > len(RULES)
    assert named <= known


@pytest.mark.slow
@needs_prometheus
def test_each_alert_fires_past_its_threshold_and_not_before(promtool):
    tests = [
        {
            "interval": "1m",
            "input_series": measured,
            "promql_expr_test": [
                {**count(name, 0), "eval_time": before},
                {**count(name, 1), "eval_time": after},
            ],
        }
        for name, (measured, (before, after)) in CASES.items()
    ]
    done = promtool(tests)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_prometheus
def test_a_run_whose_restart_budget_is_zero_is_not_near_its_end(promtool):
    measured = [constant("restart_budget_used", 0), constant("restart_budget", 0)]
    test = {**count("HoldfastRestartBudgetNearlySpent", 0), "eval_time": "5m"}
    done = promtool([{"interval": "1m", "input_series": measured, "promql_expr_test": [test]}])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_prometheus
def test_the_rules_are_well_formed(tmp_path):
    (tmp_path / "alerts.yaml").write_text(files.alert_rules())
    command = ["promtool", "check", "rules", tmp_path / "alerts.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout
