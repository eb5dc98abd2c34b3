"""The panels of a recorded run, without a browser."""

import json
import re

import pytest

pytest.importorskip("plotly")

from large_runs import BEGAN, write_run

from holdfast.job import load
from holdfast.record import units
from holdfast.record.run_record import RunRecord
from holdfast.record.views.comparison import changed_keys
from holdfast.views.dashboard import page, theme
from holdfast.views.dashboard.charts import ticks
from holdfast.views.dashboard.live import LiveRuns
from holdfast.views.dashboard.markup import text
from holdfast.views.dashboard.panels import (
    attention,
    breakdown,
    checkpoints,
    devices,
    learning,
    lost,
    newest_recovery,
    runs,
    shard_plans,
    summary,
    throughput,
    timeline,
    worker_speeds,
)
from holdfast.views.dashboard.view import View
from recorded_run import TEXT_JOB

STARTED, STEPS, KILLED_AT = 1000.0, 40, 1015.25
GAP = {"time_unix_s": KILLED_AT, "event": "worker-exited", "rank": 1, "status": -9,
       "cause": "was killed by SIGKILL", "error": "", "unexpected": True}  # fmt: skip


def started(number, at, step):
    return {
        "time_unix_s": at, "event": "generation-started", "number": number, "members": [0, 1],
        "step": step, "last_committed_step": step, "from_checkpoint": False, "checkpoint": None,
    }  # fmt: skip


EVENTS = [
    {"time_unix_s": STARTED, "event": "run-started", "workers": 2, "pid": 1},
    {"time_unix_s": 1003.0, "event": "worker-started", "rank": 0, "pid": 2},
    {"time_unix_s": 1003.1, "event": "worker-started", "rank": 1, "pid": 3},
    {"time_unix_s": 1004.0, "event": "host-profiled", "devices": "RTX 3060, GTX 1650",
     "scores": [1.0, 0.23], "source": "measured"},
    started(1, 1005.0, 0),
    {"time_unix_s": 1010.2, "event": "checkpoint-committed", "step": 10, "directory": "gone"},
    {"time_unix_s": 1011.0, "event": "bottleneck-found", "step": 12, "bottleneck": "input-bound",
     "share": 0.41, "text": "waiting for samples takes 41% of a step"},
    GAP,
    {"time_unix_s": 1015.4, "event": "worker-started", "rank": 1, "pid": 4},
    started(2, 1015.5, 20),
]  # fmt: skip
RECOVERY = {
    "number": 1, "time_unix_s": 1015.75, "outcome": "recovered",
    "causes": [{"who": "rank 1", "rank": 1, "what": "was killed by <SIGKILL>",
                "injected_fault": "kill", "stack": []}],
    "step": 20, "ended": [], "halted": [0],
    "seconds": {"found": 0.009, "forked": 0.05, "all ready": 0.08, "next step": 0.361},
    "total_s": 0.5, "checkpoint": None, "recomputed_steps": 0, "recomputed_samples": 0,
}  # fmt: skip


def step_line(step):
    phases = {"data": [0.2, 0.2], "forward": [0.1, 0.1], "backward": [0.1, 0.1],
              "wait": [0.02, 0.05], "reduce": [0.04, 0.04], "optimizer": [0.01, 0.01]}  # fmt: skip
    return {
        "step": step, "epoch": step // 10, "loss": 2 / step, "norm": 1.0, "lr": 0.1, "samples": 64,
        "logged": {"accuracy": step / 100}, "seconds": 0.5, "phases": {},
        "workers": {"rank": [0, 1], "shards": [6, 2] if step > 5 else [4, 4], **phases},
        "time_unix_s": 1005.0 + step / 2 + (0.25 if step > 20 else 0),
    }  # fmt: skip


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run_dir(tmp_path):
    """A run of 40 steps in which a worker was killed after step 20."""
    path = tmp_path / "runs" / "recorded"
    path.mkdir(parents=True)
    write(path / "events.jsonl", EVENTS)
    evaluations = {10: 0.5, 20: 0.625, 30: 0.646}
    lines = []
    for step in range(1, STEPS + 1):
        lines.append(step_line(step))
        if step in evaluations:
            lines.append({"step": step, "evaluation": {"accuracy": evaluations[step]}})
    write(path / "metrics.jsonl", lines)
    write(path / "recoveries.jsonl", [RECOVERY])
    return path


def view_of(path, now=1026.0, **more):
    return View(record=RunRecord(path), now=now, colors=theme.DARK, **more)


def words(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).replace(units.NBSP, " ").split())


def test_the_speed_of_a_language_model_is_in_tokens_too(run_dir):
    before = words(summary.panel(view_of(run_dir)).body)
    (run_dir / "job.yaml").write_text(TEXT_JOB)
    after = words(summary.panel(view_of(run_dir)).body)
    (rate,) = re.findall(r"Goodput ([\d.]+) samples/s", after)
    (tokens,) = re.findall(r"samples/s ([\d,]+) tokens/s", after)
    assert int(tokens.replace(",", "")) == pytest.approx(16 * float(rate), rel=0.01)
    assert "tokens/s" not in before


def test_the_summary_has_six_figures_and_the_progress(run_dir):
    html = summary.panel(view_of(run_dir)).body
    assert html.count('class="kpi"') == 6
    for figure in ("40", "64.6 %", "1 of 1, in 0.50 s", "0 steps recomputed", "step 10"):
        assert figure in words(html)
    assert 'role="progressbar"' in html


def test_a_failure_is_in_the_timeline_the_table_and_every_curve(run_dir):
    view = view_of(run_dir)
    panel = timeline.panel(view)
    row = "1 20 rank 1 killed by <SIGKILL> 9 ms 0.50 s 0 steps kept by rank 0"
    assert row in words(panel.body).replace("&lt;", "<").replace("&gt;", ">")
    assert "✓ 1 of 1 recovered" in panel.head
    for each in (panel, learning.loss(view), learning.accuracy(view), throughput.panel(view)):
        tags = [tag.text for tag in each.figure.layout.annotations]
        assert "<b>1</b>" in tags
        assert any(shape.x0 == pytest.approx(15.25) for shape in each.figure.layout.shapes)


def test_what_has_not_recovered_yet_is_in_progress(run_dir):
    lost = {"time_unix_s": 1025.5, "event": "host-lost", "host": "reef-2", "ranks": [1]}
    back = {"time_unix_s": 1025.9, "event": "host-joined", "host": "reef-2", "address": "10.0.0.2"}
    write(run_dir / "events.jsonl", [*EVENTS, lost, back])
    said = words(timeline.panel(view_of(run_dir)).body)
    assert "! 40 host reef-2 does not answer; it is lost with ranks [1] –" in said
    assert said.endswith("+ 40 host reef-2 joined")


def test_text_of_a_run_is_no_html(run_dir):
    assert "<SIGKILL>" not in newest_recovery.panel(view_of(run_dir)).body
    assert text("<b>&") == "&lt;b&gt;&amp;"


def test_the_report_has_the_phases_in_order(run_dir):
    seconds = {"found": 0.009, "halted": 0.02, "forked": 0.03, "all ready": 0.08, "state": 0.061}
    seconds["next step"] = 0.3
    recovery = {**RECOVERY, "seconds": seconds, "state_bytes": 89_900_000}
    write(run_dir / "recoveries.jsonl", [recovery])
    job = load.check({"task": "a.py:b", "epochs": 4}, where="test")
    (run_dir / "job.yaml").write_text(load.dump(job))
    said = words(newest_recovery.panel(view_of(run_dir)).body)
    order = [
        "killed 0 ms", "detected 9 ms", "others halted 29 ms", "replacement forked 59 ms",
        "workers ready 0.14 s", "state transferred 0.20 s", "first step 0.50 s",
    ]  # fmt: skip
    places = [said.index(word) for word in order]
    assert places == sorted(places)
    assert "State kept by rank 0; 89.9 MB sent in 61 ms" in said
    assert "Budget 1 of 10 failures in 10 min" in said
    assert "Generation 1 → 2" in said
    assert "Injected kill" in said


def test_a_report_has_no_phase_that_was_not_recorded(run_dir):
    said = words(newest_recovery.panel(view_of(run_dir)).body)
    assert "replacement forked" in said
    assert not {"others halted", "state transferred"} & set(re.findall(r"[a-z]+ [a-z]+", said))
    assert "sent in" not in said


def placed(rank, agent, at=1003.0):
    return {
        "time_unix_s": at, "event": "worker-started", "rank": rank, "pid": 9, "host": agent,
    }  # fmt: skip


def test_each_worker_is_on_its_host(run_dir):
    hosts = ("local-1", "reef-2-0123abcd")
    joined = {"time_unix_s": 1002.0, "event": "host-joined", "host": hosts[1], "address": "::1"}
    profiled = {**EVENTS[3], "host": hosts[1], "devices": "L4", "scores": [30.0]}
    profiled["bytes_per_s"] = [3e11]
    placements = [placed(rank, agent) for rank, agent in enumerate(hosts)]
    write(run_dir / "events.jsonl", [EVENTS[0], joined, *placements, profiled, *EVENTS[4:]])
    view = view_of(run_dir)
    assert view.record.hosts == dict(enumerate(hosts))
    assert [view.fleet.color(rank) for rank in (0, 1)] == [view.colors.w0, view.colors.w2]
    figure = timeline.panel(view).figure
    said = [each.text for each in figure.layout.annotations]
    assert {"<b>local</b>", "<b>reef-2</b>"} <= set(said)
    first, second, _ = figure.layout.yaxis.tickvals
    assert second - first > 1, "hosts are apart"
    assert "rank 1 reef-2" in words(breakdown.panel(view).body)
    head, body = words(worker_speeds.panel(view).head), words(worker_speeds.panel(view).body)
    assert "rank 1 reef-2 · L4 1.00 30.0 300" in body
    assert "GB/s" in body
    assert "imbalance" in head


def test_samples_say_where_a_worker_runs(run_dir):
    sample = {"cpu": 0.2, "memory_bytes": 1, "memory_total_bytes": 2, "gpus": []}
    worker = {"rank": 1, "cpu": 0.5, "memory_bytes": 1e9}
    moved = [
        {"host": host, "time_unix_s": at, **sample, "workers": [worker]}
        for host, at in (("reef-1-0123abcd", 1006.0), ("reef-2-0123abcd", 1008.0))
    ]
    write(run_dir / "system.jsonl", moved)
    view = view_of(run_dir)
    assert view.record.hosts == {1: "reef-2-0123abcd"}
    said = words(devices.panel(view).body)
    assert said.count("rank 1 CPU cores 50 % 1.00") == 1, "where it is now"


MANY = 100


@pytest.fixture
def large_run(tmp_path):
    """A run of 100 workers on 25 hosts."""
    path = tmp_path / "runs" / "large"
    write_run(path, steps=40, workers=MANY, failures=2)
    return path


def large_view(path):
    return View(record=RunRecord(path), now=BEGAN + 31, colors=theme.DARK)


def test_of_many_workers_the_worst_are_named(large_run):
    view = large_view(large_run)
    figure = shard_plans.panel(view).figure
    named = [each.name for each in figure.data if each.name]
    assert named[0] == "median"
    assert len(named) == 4, "and three workers"
    lanes = timeline.panel(view).figure.layout.yaxis.ticktext
    assert [name.strip() for name in lanes] == ["rank 7", "rank 14", "checkpoints"]
    said = words(breakdown.panel(view).body)
    assert said.count("rank ") == breakdown.MAX_WORST
    assert "mean" in said
    assert words(worker_speeds.panel(view).body).count("rank ") == 8
    panel = devices.panel(view)
    heat = panel.figure.data[0]
    assert heat.type == "heatmap"
    assert len(heat.z) == MANY / 2, "two devices share a row"
    assert words(panel.body).count("rank ") == 3


def test_without_failures_lanes_of_many_are_hosts(large_run):
    events = (large_run / "events.jsonl").read_text().splitlines()
    kept = [line for line in events if '"worker-exited"' not in line]
    (large_run / "events.jsonl").write_text("\n".join(kept) + "\n")
    lanes = timeline.panel(large_view(large_run)).figure.layout.yaxis.ticktext
    assert [name.strip() for name in lanes][:2] == ["reef-000", "reef-001"]
    assert len(lanes) == 9


def test_tags_that_would_cover_each_other_are_one(tmp_path):
    write_run(tmp_path / "run", steps=400, workers=2, failures=60)
    figure = learning.loss(large_view(tmp_path / "run")).figure
    tags = [each.text for each in figure.layout.annotations if each.text.startswith("<b>")]
    assert 10 < len(tags) <= 20
    assert tags[0].startswith("<b>1–")


def test_a_chart_stays_the_same_for_a_while_and_its_values_do_not(run_dir, monkeypatch):
    monkeypatch.setattr(RunRecord, "state", lambda *_: band_state("running"))
    views = [view_of(run_dir, now=now) for now in (1026.1, 1027.9, 1028.1)]
    for panel in (learning.loss, throughput.panel, timeline.panel, shard_plans.panel):
        first, second, third = [panel(view).figure.to_json() for view in views]
        assert first == second
        assert second != third
    assert throughput.panel(views[0]).head != throughput.panel(views[1]).head


def test_a_run_that_is_not_read_yet_says_so(run_dir, monkeypatch):
    record = RunRecord(run_dir)
    monkeypatch.setattr(RunRecord, "read_share", 0.41)
    view = View(record=record, now=1026.0, colors=theme.DARK)
    assert "○ Reading 40 steps, 41 %" in words(summary.pill(view).body)
    assert not attention.band(view).body


def test_the_band_says_what_to_do(run_dir, monkeypatch):
    monkeypatch.setattr(RunRecord, "state", lambda *_: band_state("running"))
    said = words(attention.band(view_of(run_dir)).body)
    assert "Input-bound: waiting for samples takes 41 % of a step. Raise loader.workers" in said
    monkeypatch.undo()
    assert "its process ended" in words(attention.band(view_of(run_dir)).body)


def band_state(name):
    from holdfast.record.state import RunState, StateName

    return RunState(name=StateName(name))


def test_curves_follow_the_axis_and_the_range(run_dir):
    view = view_of(run_dir, axis="step")
    assert view.x_range == (0.0, 40.0)
    assert list(learning.loss(view).figure.data[-1].x)[:2] == [1.0, 2.0]
    late = view_of(run_dir, span_s=5.0)
    assert max(learning.loss(late).figure.data[-1].y) < max(learning.loss(view).figure.data[-1].y)
    assert late.x_range[0] == pytest.approx(late.x_range[1] - 5)
    assert ticks(view_of(run_dir))[1][:2] == ["0 s", "5"]


def test_the_accuracy_of_the_training_is_a_thin_line_with_its_newest_value(run_dir):
    thin, main = learning.accuracy(view_of(run_dir)).figure.data
    assert thin.line.width < main.line.width
    assert (thin.y[0], thin.y[-1]) == pytest.approx((1, 40))
    texts = [tag.text for tag in learning.accuracy(view_of(run_dir)).figure.layout.annotations]
    assert "training 40.0 %" in [each.replace(units.NBSP, " ") for each in texts]


def test_a_compared_run_is_dashed(run_dir):
    view = view_of(run_dir, compared=RunRecord(run_dir))
    for panel in (learning.loss(view), learning.accuracy(view)):
        assert panel.figure.data[-1].line.dash
        assert "recorded" in panel.head


def test_shards_times_hardware_and_lost_time(run_dir):
    view = view_of(run_dir)
    figure = shard_plans.panel(view).figure
    assert [list(each.y) for each in figure.data] == [[4, 6, 6], [4, 2, 2]]
    assert "equal" not in shard_plans.panel(view).head
    said = words(breakdown.panel(view).body)
    assert "rank 0 5.75 shards" in said
    said = words(worker_speeds.panel(view).body)
    assert "rank 1 GTX 1650 0.23" in said
    said = words(lost.panel(view).body)
    assert "useful steps" in said
    assert "recovery" in said
    said = words(checkpoints.panel(view).body)
    assert "30 steps" in said


def test_shards_say_for_whose_score_they_began_equal(run_dir):
    missing = {"time_unix_s": 1005.1, "event": "scores-missing", "balance": "hybrid", "ranks": [1]}
    write(run_dir / "events.jsonl", [*EVENTS, missing])
    assert "began equal: no reliable score of rank 1" in shard_plans.panel(view_of(run_dir)).head


def test_devices_are_shown_where_the_run_measures_them(run_dir):
    assert "once the run records it" in devices.panel(view_of(run_dir)).body
    gpu = {"index": 0, "name": "RTX 3060", "utilization": 0.54, "memory_bytes": 5.9e9,
           "memory_total_bytes": 12e9, "temperature_c": 71, "power_w": 120}  # fmt: skip
    line = {"host": "reef-1", "time_unix_s": 1006.0, "cpu": 0.2, "memory_bytes": 1,
            "memory_total_bytes": 2, "gpus": [gpu], "workers": []}  # fmt: skip
    write(run_dir / "system.jsonl", [line, line])
    said = words(devices.panel(view_of(run_dir)).body)
    assert "GPU 0 reef-1 · RTX 3060 54 % 5.90 of 12.0 71" in said


def test_each_panel_says_when_its_data_come(tmp_path):
    (tmp_path / "new").mkdir()
    view = view_of(tmp_path / "new")
    for name, panel in page.PANELS.items():
        found = panel(view)
        assert name == "band" or found.body, name
        assert found.figure is None


def test_runs_are_listed_newest_first_and_compared(run_dir):
    other = run_dir.with_name("other")
    other.mkdir()
    write(other / "events.jsonl", EVENTS[:1])
    found = LiveRuns(run_dir.parent)
    assert found.names() == ["other", "recorded"]
    assert LiveRuns(run_dir).names() == ["recorded", "other"]
    with found.reading_all(["other", "recorded", "gone"]) as records:
        said = words(runs.table_of(records, "recorded", "other", 1026.0))
    assert "✕ Failed recorded" in said
    assert changed_keys({"a": {"b": 1}, "c": 2}, {"a": {"b": 2}, "c": 2}) == ["a.b 1"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.009, "9 ms"), (0.24, "0.24 s"), (2.31, "2.31 s"), (38, "38 s"), (500, "8 min 20 s"),
     (3840, "1 h 04 min"), (None, "–")],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds, said):
    assert units.duration(seconds).replace(units.NBSP, " ") == said


def test_numbers_have_three_digits():
    assert [units.digits(each) for each in (1.0449, 64.61, 457.2, 2196.4)] == [
        "1.04", "64.6", "457", "2,196",
    ]  # fmt: skip
    assert units.size(89_900_000).replace(units.NBSP, " ") == "89.9 MB"


def test_a_run_that_is_made_again_under_its_name_begins_anew(run_dir):
    runs = LiveRuns(run_dir.parent)
    with runs.reading("recorded", None) as (record, _):
        assert len(record.events) == len(EVENTS)
    (run_dir / "events.jsonl").rename(run_dir / "kept.jsonl")
    write(run_dir / "events.jsonl", EVENTS[:1])
    with runs.reading("recorded", None) as (record, _):
        assert len(record.events) == 1
