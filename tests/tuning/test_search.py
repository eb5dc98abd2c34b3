"""Searches with real runs: killed and resumed, stopped by rules, refused."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from conftest import holdfast_processes, sampled, wait_until
from holdfast import tune
from holdfast.errors import HoldfastError, JobError
from holdfast.rundir.run_directory import held

pytestmark = pytest.mark.slow

TINY = {"epochs": 3, "workers": 1, "model.width": 2, "batch": 512, "data.augment": False}
WORDS = [f"{key}={json.dumps(value)}" for key, value in TINY.items()]
SPACE = {"optimizer.lr": "1e-3..1:log", "model.dropout": [0.0, 0.1]}
RANGES = ["--space", "optimizer.lr=1e-3..1:log", "--space", "model.dropout=0.0,0.1"]


def record(path, event):
    lines = (path / "trials.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def outcomes(result):
    return [(each.values, each.value, each.weights_sha256) for each in result.trials]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "undisturbed"
    return tune("digits", TINY, space=SPACE, sampler="random", trials=3, at_once=1, run_dir=path)


def test_a_search_leaves_its_trials_its_winner_and_tables(undisturbed):
    path = undisturbed.path
    assert [each.number for each in undisturbed.trials] == [0, 1, 2]
    assert {each.status for each in undisturbed.trials} == {"finished"}
    assert undisturbed.best.value == max(each.value for each in undisturbed.trials)
    assert json.loads((path / "result.json").read_text()) == undisturbed.as_dict()
    with (path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [each.value for each in undisturbed.trials]
    assert (path / "best.safetensors").stat().st_size > 1000
    of_trial = json.loads((undisturbed.best.run_dir / "result.json").read_text())
    assert of_trial["best"]["value"] == undisturbed.best.value


def test_the_winners_job_gives_its_weights_again(undisturbed, tmp_path):
    from holdfast import train

    again = train(str(undisturbed.path / "best.yaml"), run_dir=tmp_path / "again")
    assert again.weights_sha256 == undisturbed.best.weights_sha256


def test_a_search_that_is_killed_leaves_nothing_and_is_resumed_as_the_same(
    undisturbed, command, tmp_path
):
    path = tmp_path / "killed"
    options = ["--sampler", "random", "--trials", 3, "--at-once", 2]
    first = command("tune", "digits", *WORDS, *RANGES, *options, "--run", path)
    wait_until(lambda: (path / "trials.jsonl").exists() and record(path, "evaluated"))
    first.kill()
    first.wait()
    wait_until(lambda: holdfast_processes(f"HOLDFAST_TEST={tmp_path}") == [], 10)
    result = tune("digits", resume=True, run_dir=path, at_once=1)
    assert outcomes(result) == outcomes(undisturbed)
    assert [entry["trial"] for entry in record(path, "asked")] == [0, 1, 2]
    assert sorted(entry["trial"] for entry in record(path, "ended")) == [0, 1, 2]


@pytest.mark.full
def test_a_trial_whose_process_dies_is_continued_as_the_same(undisturbed, command, tmp_path):
    path = tmp_path / "wounded"
    options = ["--sampler", "random", "--trials", 2, "--at-once", 1]
    search = command("tune", "digits", *WORDS, *RANGES, *options, "--run", path, "--json")
    events = path / "trials/0001/events.jsonl"
    wait_until(lambda: events.exists() and "generation-started" in events.read_text())
    os.kill(json.loads(events.read_text().splitlines()[0])["pid"], signal.SIGKILL)
    assert search.wait(60) == 0
    found = json.loads((path / "result.json").read_text())["trials"]
    assert [each["weights_sha256"] for each in found] == [
        each.weights_sha256 for each in undisturbed.trials[:2]
    ]
    assert [entry["trial"] for entry in record(path, "started")] == [0, 1, 1]


@pytest.mark.full
def test_ctrl_c_stops_the_trials_with_checkpoints(command, tmp_path):
    path = tmp_path / "stopped"
    search = command("tune", "digits", *WORDS, "epochs=500", *RANGES, "--at-once", 1, "--run", path)
    wait_until(lambda: (path / "trials.jsonl").exists() and record(path, "evaluated"))
    search.send_signal(signal.SIGINT)
    assert search.wait(60) == 130
    assert "holdfast tune --resume" in (tmp_path / "output-0").read_text()
    assert any((path / "trials/0000/checkpoints").iterdir())
    assert record(path, "ended") == []


@pytest.mark.parametrize("rule", sampled(["asha", "hyperband"], 0))
def test_poor_trials_are_stopped_with_a_checkpoint(rule, tmp_path):
    space = {"optimizer.lr": [0.02, 1e-7, 1e-8]}
    result = tune(
        "digits",
        {**TINY, "epochs": 12, "batch": 256},
        space=space,
        sampler="grid",
        stop=rule,
        at_once=1,
        run_dir=tmp_path / "search",
    )
    assert [each.status for each in result.trials] == ["finished", "stopped", "stopped"]
    assert all(each.epochs < 12 for each in result.trials[1:])
    assert all(any((each.run_dir / "checkpoints").iterdir()) for each in result.trials)
    assert result.best.values == {"optimizer.lr": 0.02}
    steps = [entry["steps"] for entry in record(result.path, "ended")]
    assert sum(steps) <= 0.6 * 3 * steps[0]


def test_a_bad_space_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(JobError, match=r"the space .*: unknown key optimizer\.rate"):
        tune("digits", TINY, space={"optimizer.rate": "0.1..1"}, run_dir=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_trials_that_fail_alike_end_the_search(tmp_path):
    with pytest.raises(HoldfastError, match=r"failed alike.*data"):
        tune(
            "digits",
            {**TINY, "data": {"name": "image-folder", "path": str(tmp_path / "none")}},
            space=SPACE,
            at_once=1,
            run_dir=tmp_path / "search",
        )
    assert len(record(tmp_path / "search", "ended")) == 3


def test_a_search_is_resumed_as_it_was_begun(undisturbed):
    with pytest.raises(JobError, match="only trials, budget_s, at_once may change"):
        tune("digits", resume=True, run_dir=undisturbed.path, sampler="gp")
    with pytest.raises(JobError, match="none holds no search"):
        tune("digits", resume=True, run_dir=undisturbed.path / "none")
    with held(undisturbed.path), pytest.raises(JobError, match="in use by another process"):
        tune("digits", resume=True, run_dir=undisturbed.path)


@pytest.mark.full
def test_more_trials_continue_a_search_that_has_ended(undisturbed, tmp_path):
    path = shutil.copytree(undisturbed.path, tmp_path / "copy")
    more = tune("digits", resume=True, run_dir=path, trials=4)
    assert outcomes(more)[:3] == outcomes(undisturbed)
    assert [each.number for each in more.trials] == [0, 1, 2, 3]


@pytest.mark.full
def test_a_trial_can_be_stopped_by_its_own_command(command, tmp_path):
    path = tmp_path / "search"
    search = command("tune", "digits", *WORDS, "epochs=500", *RANGES, "--trials", 1, "--run", path)
    wait_until(lambda: (path / "trials.jsonl").exists() and record(path, "evaluated"))
    assert command("stop", path / "trials/0000").wait(60) == 0
    assert search.wait(60) == 0
    (trial,) = json.loads((path / "result.json").read_text())["trials"]
    assert (trial["status"], trial["reason"]) == ("stopped", "stopped by a signal")


def test_a_directory_is_taken_once(undisturbed):
    with pytest.raises(JobError, match="exists; continue it with --resume"):
        tune("digits", TINY, space=SPACE, run_dir=Path(undisturbed.path))


@pytest.mark.soak
def test_strict_searches_do_not_depend_on_which_trials_end_first(tmp_path):
    def search(name):
        return tune(
            "digits",
            {**TINY, "batch": 256},
            space=SPACE,
            sampler="tpe",
            stop="asha",
            strict=True,
            trials=14,
            at_once=2,
            run_dir=tmp_path / name,
        )

    def plain(result):
        return [(each.values, each.value, each.epochs, each.status) for each in result.trials]

    assert plain(search("one")) == plain(search("two"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no job is named; or give --resume SEARCH"),
        (["digits", "--sampler", "tpo"], "--sampler: unknown 'tpo'; did you mean tpe?"),
        (["digits", "--stop", "pruner"], "--stop: unknown 'pruner'; use none, asha"),
        (["digits", "--budget", "20"], "--budget 20: give a time, such as 90s, 20m or 2h"),
        (["digits", "--resume", "runs/x"], "--resume continues a search as it was begun"),
        (["--resume", "runs/x"], "runs/x holds no search"),
        (["digits", "workers=auto"], "workers=auto measures the whole host"),
        (["digits", "--goal", "up"], "--goal: unknown 'up'; use max, min"),
    ],
)
def test_options_that_are_wrong_say_so(words, message, command_line):
    assert message in command_line("tune", *words)[2]
