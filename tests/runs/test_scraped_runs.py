"""A run on two hosts is scraped by Prometheus while a worker of it is killed."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import nvml_stand_in
from conftest import events_of, own_loopback_address, wait_until
from holdfast.record.run_record import RunRecord
from holdfast.sinks.prometheus import files
from holdfast.sinks.prometheus.catalogue import METRICS
from holdfast.views.dashboard import theme
from holdfast.views.dashboard.panels import attention, devices
from holdfast.views.dashboard.view import View
from prometheus_tools import needs_prometheus

pytestmark = [pytest.mark.slow, pytest.mark.full, needs_prometheus, nvml_stand_in.needs_gcc]

FIRING = 'ALERTS{alertstate="firing"}'
PACED = Path(__file__).with_name("paced_tasks.py")


@contextmanager
def prometheus(folder, targets, port):
    """Scrapes while the block runs: `query(PromQL) -> results`.

    Args:
        folder: For its data; with the run's directory.
        targets: What is scraped: the run, which asks for its token, and a host of it.
        port: Of its own.
    """
    run, host = ([{"targets": [target]}] for target in targets)
    token = {"credentials_file": "run/secrets/metrics.token"}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [
            {"job_name": "runs", "static_configs": run, "authorization": token},
            {"job_name": "hosts", "static_configs": host},
        ],
    }
    (folder / "alerts.yaml").write_text(files.alert_rules().replace("for: 300s", "for: 1s"))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    where = f"127.0.0.1:{port}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yaml", f"--web.listen-address={where}",
             "--storage.tsdb.path=data"],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip

    def query(promql):
        url = f"http://{where}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]["result"]

    def is_up():
        try:
            return bool(query("vector(1)"))
        except OSError:
            return False

    try:
        wait_until(is_up)
        yield query
    finally:
        process.terminate()
        process.wait(60)


def url_in(output):
    wait_until(lambda: "metrics: http" in output.read_text())
    return re.search(r"metrics: (http\S+)", output.read_text())[1]


def test_all_that_a_dashboard_shows_of_a_run_on_two_hosts_arrives(
    command, tmp_path, free_port, monkeypatch
):
    for name, value in nvml_stand_in.build(tmp_path).items():
        monkeypatch.setenv(name, value)
    address, never = own_loopback_address(), tmp_path / "never"
    keys = ["workers=2", "shards=4", "batch=20", "checkpoint.every_steps=5", "device=auto"]
    first = command(
        "coordinator", f"{PACED}:main", *keys, f"params={{hurry: {never}}}", "--hosts", 2,
        "--address", address, "--run", "run", "--metrics", "0.0.0.0:0",
    )  # fmt: skip
    token = tmp_path / "run" / "secrets" / "join.token"
    wait_until(token.exists)
    join = ["agent", "--join", f"{address}:50051", "--token-file", token]
    agent = command(*join, "--run", "host-2", "--metrics", 0)
    urls = url_in(tmp_path / "output-0"), url_in(tmp_path / "output-1")
    targets = [url.split("/")[2].replace("0.0.0.0", "127.0.0.1") for url in urls]

    with prometheus(tmp_path, targets, free_port) as query:
        wait_until(lambda: query("holdfast_step > 3"))
        os.kill(events_of(tmp_path / "host-2", "worker-started")[-1]["pid"], signal.SIGKILL)
        wait_until(lambda: query('holdfast_recoveries_total{cause="worker"} == 1'))
        wait_until(lambda: query("holdfast_checkpoint_save_seconds_count > 0"))
        wait_until(lambda: len(query(_at(targets[0], "holdfast_worker_memory_bytes"))) == 2)
        wait_until(lambda: len(query(_at(targets[1], "holdfast_worker_memory_bytes"))) == 1)

        bearer = (tmp_path / "run" / "secrets" / "metrics.token").read_text().strip()
        request = urllib.request.Request(
            f"http://{targets[0]}/metrics", headers={"Authorization": f"Bearer {bearer}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")

        for metric in METRICS.values():
            name = metric.name + "_count" * (metric.kind == "histogram")
            is_there = "accuracy" not in name  # the task neither evaluates nor logs one
            assert bool(query(_at(targets[0], name))) == is_there, name
        hosts = {each["metric"]["host"] for each in query(_at(targets[0], "holdfast_host_load"))}
        assert len(hosts) == 2
        assert query("max(holdfast_gpu_temperature_celsius)")[0]["value"][1] == "86"
        wait_until(lambda: query(FIRING))
        assert {each["metric"]["alertname"] for each in query(FIRING)} == {"HoldfastGpuHot"}

        for panel in json.loads(files.grafana_dashboard())["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"].replace("$__rate_interval", "1m").replace("$job", "runs")
                found = query(expr.replace("$instance", targets[0]))
                assert found or "accuracy" in expr, expr

    assert "86" in devices.panel(view_of(tmp_path / "run")).body
    first.send_signal(signal.SIGTERM)
    assert first.wait(120) == agent.wait(60) == 130
    lasted(tmp_path / "run" / "system.jsonl", 300)
    said = attention.alerts(view_of(tmp_path / "run")).body
    assert "▲ GPU &gt; 85 °C for 5 min" in said
    assert said.count("▲") == 1


def view_of(run_dir):
    return View(record=RunRecord(run_dir), now=time.time(), colors=theme.DARK)


def lasted(path, seconds):
    """Make the first samples of a file as much older, as if all had been so since."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    hosts = set()
    for line in lines:
        if line["host"] not in hosts:
            hosts.add(line["host"])
            line["time_unix_s"] -= seconds
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _at(instance, name):
    return f'{name}{{instance="{instance}"}}'
