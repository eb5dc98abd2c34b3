"""`holdfast run`: what a script reports is known wherever the steps of training jobs are."""

import json
import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from conftest import metrics_of, wait_until
from holdfast.record.goodput import Cause
from holdfast.record.run_record import RunRecord
from holdfast.record.units import digits
from holdfast.record.views.pace import mean_loss
from holdfast.rundir import json_lines
from holdfast.views.dashboard import theme
from holdfast.views.dashboard.panels import learning, summary
from holdfast.views.dashboard.view import View

pytestmark = pytest.mark.slow

FACTS = r"step \d+  loss \S+  \S+ samples/s"
REPORTING = Path(__file__).parent / "scripts" / "reporting.py"


def test_a_record_has_the_steps_of_a_script_and_what_a_failure_has_cost(run, tmp_path):
    result = run(REPORTING, tmp_path, 20, "killed")
    assert (result.status, result.steps, result.restarts) == ("finished", 20, 1)
    lines = metrics_of(tmp_path / "run")
    assert result.loss == lines[-1]["loss"]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert all(line["loss"] > 0 for line in lines)
    assert {line["samples"] for line in lines} == {16}
    [report] = json_lines.read(tmp_path / "run" / "recoveries.jsonl")
    assert (report["outcome"], report["step"], report["checkpoint"]) == ("recovered", 13, 10)
    assert (report["recomputed_steps"], report["recomputed_samples"]) == (3, 48)
    before = json_lines.read(tmp_path / "run" / "recomputed.jsonl")
    assert [line["step"] for line in before] == [11, 12, 13]
    record = RunRecord(tmp_path / "run")
    rows = record.workers(5)
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["forward"] > 0 and row["reduce"] > 0 for row in rows)
    goodput = record.goodput()
    assert goodput.seconds[Cause.RECOMPUTED] > 0
    [restarted] = [each for each in record.events if each["event"] == "generation-started"][1:]
    assert restarted["last_committed_step"] == 13
    assert goodput.samples_per_s == pytest.approx(20 * 16 / goodput.total_s)


def test_steps_of_a_script_that_reports_none_are_those_of_its_optimizer(run, tmp_path):
    assert run(REPORTING, tmp_path, 15, "silent", "killed").status == "finished"
    lines = metrics_of(tmp_path / "run")
    # 13, of which the script has made three again after the kill.
    assert [(line["step"], line["loss"]) for line in lines][-1] == (18, None)
    [report] = json_lines.read(tmp_path / "run" / "recoveries.jsonl")
    assert (report["outcome"], report["step"], report["recomputed_steps"]) == ("restarted", 13, 0)


@pytest.mark.full
def test_a_script_that_runs_is_shown_like_a_training_job(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = ["--workers", 2, "--set", "trackers=[tensorboard]", "--run", "live", "--metrics", 0]
    running = command("run", *options, REPORTING, tmp_path, 100_000, "slow")
    output = tmp_path / "output-0"
    wait_until(lambda: "metrics: http" in output.read_text())
    address = re.search(r"metrics: (http\S+)", output.read_text())[1]

    def scraped():
        with urllib.request.urlopen(address) as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
        return {name: float(value) for name, value in lines if name[0] != "#"}

    wait_until(lambda: scraped().get("holdfast_samples_per_second", 0) > 0)
    found = scraped()
    assert found["holdfast_step"] > 0
    assert found["holdfast_loss"] > 0
    assert found["holdfast_samples_total"] % 16 == 0
    top = command("top", "live")
    shown = tmp_path / "output-1"
    wait_until(lambda: re.search(rf"running  {FACTS}", shown.read_text()))
    assert command("runs", "--json").wait(60) == 0
    [row] = json.loads((tmp_path / "output-2").read_text())
    assert (row["state"], row["step"] > 0) == ("running", True)
    wait_until(lambda: re.search(FACTS, output.read_text()))
    view = View(record=RunRecord(tmp_path / "live"), now=time.time(), colors=theme.LIGHT)
    shown = f"{summary.panel(view).body} {learning.loss(view).head}"
    assert shown.count(digits(mean_loss(view.record))) == 2
    running.send_signal(signal.SIGTERM)
    assert (running.wait(60), top.wait(60)) == (130, 0)
    assert b"train/loss" in b"".join(
        path.read_bytes() for path in (tmp_path / "live").glob("tensorboard/**/*tfevents*")
    )
