"""Alerts on a run's record fire past their thresholds and not before, and no other one does."""

import json

import pytest

from holdfast.record import alert_rules
from holdfast.record.alert_rules import AlertRule
from holdfast.record.run_record import RunRecord
from holdfast.record.views.alerts import alerts_of
from holdfast.record.views.headline import headline_of

RULES = [each for each in vars(alert_rules).values() if isinstance(each, AlertRule)]
START = 1000.0
JOB = {"task": "mine.py:Mine", "workers": 4, "shards": 4, "threads_per_worker": 1}
"""A run of four workers, of which ten may fail in ten minutes."""


def event(name, at, **more):
    return {"time_unix_s": at, "event": name, **more}


BEGUN = [
    event("run-started", START, workers=4, pid=1),
    event("generation-started", START, number=1, members=[0, 1, 2, 3], step=0,
          last_committed_step=0, from_checkpoint=False, checkpoint=None),
]  # fmt: skip


def steps(first, last, forward=(1.0, 1.0, 1.0, 1.0)):
    """A step a second from one moment to another."""
    ranks = list(range(len(forward)))
    workers = {"rank": ranks, "shards": [8] * len(ranks), "forward": list(forward)}
    return [
        {"step": 1 + at - int(START), "epoch": 0, "loss": 1.0, "norm": 1.0, "lr": 0.1, "samples": 8,
         "logged": {}, "seconds": 1.0, "phases": {}, "workers": workers, "time_unix_s": float(at)}
        for at in range(int(first), int(last) + 1)
    ]  # fmt: skip


def gpu_samples(first, last, **measured):
    gpu = {"index": 0, "name": "T4", "utilization": 0.9, "temperature_c": 60.0} | measured
    return [
        {"host": "h1", "time_unix_s": float(at), "gpus": [gpu], "workers": []}
        for at in range(int(first), int(last) + 1, 2)
    ]


def killed(at):
    return event("worker-exited", at, rank=1, status=-9, cause="was killed", error="",
                 unexpected=True)  # fmt: skip


def shrunk(at):
    return event("generation-started", at, number=2, members=[0, 1, 2], step=9,
                 last_committed_step=9, from_checkpoint=False, checkpoint=None)  # fmt: skip


def saved(at):
    return event("checkpoint-committed", at, step=1, directory="gone")


CASES = {
    "NoStep": ({"metrics": steps(START, 1100)}, (1400, 1401)),
    "WorkerLost": ({"events": [shrunk(1200)], "metrics": steps(START, 1330)}, (1319, 1320)),
    "RestartBudgetNearlySpent": (
        {"events": [killed(1100 + n) for n in range(8)], "metrics": steps(START, 1110)},
        (1106, 1107),
    ),
    "CheckpointTooOld": (
        {"events": [saved(1100)], "metrics": steps(4500, 4702)}, (4700, 4701),
    ),
    "CheckpointsFail": (
        {"events": [event("checkpoint-failed", 1100, step=5, reason="no space")],
         "metrics": steps(START, 2000)}, (1099, 1100),
    ),
    "Imbalance": ({"metrics": steps(START, 1620, (1.3, 0.9, 0.9, 0.9))}, (1598, 1601)),
    "GpuUnderused": (
        {"metrics": steps(START, 1620), "system": gpu_samples(START, 1620, utilization=0.49)},
        (1598, 1601),
    ),
    "GpuHot": (
        {"metrics": steps(START, 1310), "system": gpu_samples(START, 1310, temperature_c=86.0)},
        (1298, 1301),
    ),
}  # fmt: skip
"""For each rule: what is recorded, the last time without an alert, and one with it."""


def write(run_dir, name, lines, until):
    """Write the lines of a file up to a moment: what a reader sees then."""
    lines = [line for line in lines if line["time_unix_s"] <= until]
    (run_dir / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def at(tmp_path):
    """What is recorded until a moment: `at(moment, recorded) -> RunRecord`."""
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))

    def make(moment, recorded):
        write(tmp_path, "events", [*BEGUN, *recorded.get("events", [])], moment)
        for name in ("metrics", "system"):
            write(tmp_path, name, recorded.get(name, []), moment)
        return RunRecord(tmp_path)

    return make


def firing(record, now):
    return {each.rule.name for each in alerts_of(record, now) if each.is_firing}


def test_every_rule_has_a_case():
    assert set(CASES) == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_fires_past_its_threshold_and_no_other_does(at, name):
    recorded, (before, after) = CASES[name]
    assert firing(at(before, recorded), before) == set()
    assert firing(at(after, recorded), after) == {name}


def test_no_rule_of_steps_and_checkpoints_fires_for_a_script(at, tmp_path):
    (tmp_path / "job.yaml").write_text(json.dumps({"script": {"path": "train.py"}, "workers": 4}))
    last = alert_rules.CHECKPOINT_AGE.limit + 2 * START
    running = [event("generation-started", START + 1, number=1, members=[0, 1, 2, 3])]
    assert firing(at(last, {"events": running}), last) == set()


def test_a_script_that_makes_steps_may_stall_but_saves_its_own_checkpoints(at, tmp_path):
    (tmp_path / "job.yaml").write_text(json.dumps({"script": {"path": "train.py"}, "workers": 4}))
    last = alert_rules.CHECKPOINT_AGE.limit + 2 * START
    assert firing(at(last, {"metrics": steps(START, 1100)}), last) == {"NoStep"}


def test_the_worst_alert_is_the_headline_of_a_run_that_trains(at):
    recorded = {"metrics": steps(START, 1320), "system": gpu_samples(START, 1320, temperature_c=86)}
    record = at(1320, recorded)
    state = record.state(1320)
    found = headline_of(record, type(state)(name="running"), 1320)
    assert found.title == "GPU > 85 °C for 5 min:"
    assert "highest 86.0" in found.words.replace("\N{NO-BREAK SPACE}", " ")


def test_a_worker_that_goes_to_standby_is_not_lost(at):
    evicted = event("worker-evicted", 1100.0, rank=3, reason="compute")
    for events in ([evicted], [evicted, shrunk(1101.0)]):
        found = alerts_of(at(1400.0, {"events": events}), 1400.0)
        (alert,) = (each for each in found if each.rule is alert_rules.WORKER_LOST)
        assert (alert.value, alert.is_firing) == ("4 of 4 present", False)
