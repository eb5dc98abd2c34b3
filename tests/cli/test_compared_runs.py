"""`holdfast compare`: figures of recorded runs next to each other, and what they lack."""

import csv
import json
import shutil

import pytest
from PIL import Image

from conftest import killing, watching
from holdfast.api.train import run_job
from holdfast.job import load
from holdfast.runs.run import LaunchOptions
from recorded_run import JOB, LAST_STEP, STARTED, TEXT_JOB, step, write, write_run

FIRST_STEPS = range(1, LAST_STEP // 2 + 1)
"""The steps of the run with whole batches that have as many samples as the other one in all."""


def halved(line):
    return {**line, "samples": 32, "seconds": 0.25}


@pytest.fixture
def runs(tmp_path):
    """A run, and one with half the batch in half the time, in directories of the same name."""
    first, second = tmp_path / "whole" / "run", tmp_path / "half" / "run"
    for path in (first, second):
        write_run(path)
    (first / "result.json").write_text(
        json.dumps({"exactness": "bit-exact", "weights_sha256": "5ba1" * 16})
    )
    (second / "job.yaml").write_text(f"{JOB}batch: 32\n")
    write(second / "metrics.jsonl", [halved(step(n)) for n in range(1, LAST_STEP + 1)])
    return first, second


@pytest.fixture
def compared(command_line):
    """Compare runs: `compared(word, …) -> what --json prints`."""

    def run(*words):
        status, out, err = command_line("compare", "--json", *map(str, words))
        assert (status, err) == (0, "")
        return json.loads(out)

    return run


def test_figures_of_runs_are_those_of_their_records(runs, compared):
    found = compared(*runs, "--price", 3.6)
    whole, half = found["runs"]
    assert (whole["name"], half["name"]) == ("whole/run", "half/run")
    assert (whole["samples"], half["samples"]) == (64 * LAST_STEP, 32 * LAST_STEP)
    assert whole["wall_s"] == 1025.25 - STARTED
    assert (whole["samples_per_s"], half["samples_per_s"]) == (64 / 0.5, 32 / 0.25)
    assert whole["goodput_samples_per_s"] == pytest.approx(64 * LAST_STEP / whole["wall_s"])
    assert whole["imbalance"] == pytest.approx(1 - 0.4005 / 0.401)  # see recorded_run.step
    assert (whole["recoveries"], whole["evaluation.accuracy"]) == (1, 0.646)
    assert 0 < whole["lost_s"] <= 0.5
    assert (whole["exactness"], half["exactness"]) == ("bit-exact", None)
    assert whole["cost"] == pytest.approx(whole["wall_s"] * 0.001)
    assert whole["cost_per_1000"] == pytest.approx(1000 * whole["cost"] / whole["samples"])


def test_losses_are_compared_at_equal_samples(runs, compared):
    found = compared(*runs)
    assert found["equal_samples"] == 32 * LAST_STEP
    losses = [each["loss_at_equal_samples"] for each in found["runs"]]
    early = sum(2 / number for number in FIRST_STEPS) / len(FIRST_STEPS)
    late = sum(2 / number for number in range(1, LAST_STEP + 1)) / LAST_STEP
    assert losses == [pytest.approx(early), pytest.approx(late)]
    assert found["runs"][0]["loss"] < losses[0]
    assert found["notes"] == ["half/run differs from whole/run: batch 32"]


def test_a_pause_between_two_starts_takes_no_time(runs, compared):
    events = runs[1] / "events.jsonl"
    with events.open("a") as file:
        for at, name in ((2000.0, "run-started"), (2004.0, "run-ended")):
            file.write(json.dumps({"time_unix_s": at, "event": name, "workers": 2}) + "\n")
    once, twice = compared(*runs, "--price", 3.6)["runs"]
    assert twice["wall_s"] == once["wall_s"] + 4
    assert twice["cost"] == pytest.approx(twice["wall_s"] * 0.001)
    assert twice["goodput_samples_per_s"] == pytest.approx(twice["samples"] / twice["wall_s"])


def test_losses_of_other_parameters_may_compare(runs, compared):
    (runs[1] / "job.yaml").write_text(f"{JOB}params: {{width: 9}}\n")
    (note,) = compared(*runs)["notes"]
    assert note == (
        "half/run differs from whole/run: params.width 9; "
        "losses compare only if both learn from the same data"
    )


def test_other_data_are_noted_and_compared_all_the_same(runs, compared):
    (runs[1] / "job.yaml").write_text(TEXT_JOB)
    found = compared(*runs)
    assert "data.name synthetic-text" in found["notes"][0]
    assert "losses do not compare" in found["notes"][0]
    assert found["runs"][0]["tokens_per_s"] is None
    assert found["runs"][1]["tokens_per_s"] == 16 * found["runs"][1]["samples_per_s"]


def test_what_a_run_lacks_is_a_dash_and_a_note(runs, command_line, tmp_path):
    script, new, old = (tmp_path / name for name in ("script", "new", "old"))
    for path in (script, new, old):
        shutil.copytree(runs[1], path)
    for path in (script, new):
        (path / "metrics.jsonl").unlink()
    (script / "job.yaml").write_text("script: {path: train.py}\nworkers: 2\n")
    (old / "job.yaml").write_text("batch: many\n")
    paths = [str(path) for path in (runs[0], script, new, old)]
    status, out, err = command_line("compare", *paths, "--price", "1")
    assert (status, err) == (0, "")
    assert out.count("note:") == 4  # one of them on the batch of the run without steps
    assert "note: script runs a script that has made no step\n" in out
    assert "note: new has committed no step\n" in out
    assert "note: old: this version cannot read its job\n" in out
    cells = {line[:26].strip(): line[26:].split() for line in out.splitlines()}
    assert cells["samples/s"] == ["128", "–", "–", "128"]
    assert cells["steps"] == ["40", "–", "0", "40"]
    assert cells["batch"] == ["64", "–", "32", "–"]
    assert cells["recoveries"] == ["1", "1", "1", "1"]
    assert cells["cost"][3] == "–"
    assert "tokens/s" not in cells  # none of them trains on text


def test_one_run_has_a_table_without_notes(runs, command_line):
    status, out, _ = command_line("compare", str(runs[0]), str(runs[0]))
    assert (status, "note:" in out, out.count("bit-exact")) == (0, False, 1)


def test_a_table_of_values_has_a_line_for_each_run(runs, compared, tmp_path):
    found = compared(*runs, "--csv", tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["whole/run", "half/run"]
    assert [float(row["loss"]) for row in rows] == [each["loss"] for each in found["runs"]]
    assert rows[1]["exactness"] == ""


@pytest.mark.slow
def test_losses_and_throughput_are_drawn(runs, compared, command_line, tmp_path):
    compared(*runs, "--figure", tmp_path / "runs.png")
    with Image.open(tmp_path / "runs.png") as picture:
        assert picture.size == (1080, 720)
    status, _, err = command_line("compare", str(runs[0]), "--figure", str(tmp_path / "x.txt"))
    assert (status, "Format 'txt' is not supported" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent"], "no run 'absent'; holdfast runs lists those of this host"),
        (["{run}", "--csv", "{run}/no/x.csv"], "/no/x.csv: No such file or directory"),
    ],
)
def test_a_run_or_file_that_is_not_there_is_named(runs, command_line, words, message):
    status, _, err = command_line("compare", *(word.format(run=runs[0]) for word in words))
    assert (status, message in err, err.count("\n")) == (2, True, 1)


@pytest.mark.slow
def test_a_language_model_that_lost_a_worker_has_all_figures(forks, compared, tmp_path, capsys):
    path = tmp_path / "killed"
    keys = {
        "task": "language",
        "data": {"name": "synthetic-text", "size": 2048, "length": 16},
        "model": {"name": "gpt", "width": 8, "heads": 2, "layers": 1},
        "batch": 8,
        "shards": 2,
        "workers": 2,
    }
    with watching(path, killing(path, 3, rank=1)):
        result = run_job(
            load.request(keys, "test"), LaunchOptions(forks=forks), run_dir=path, resume=False
        )
    assert result.tokens_per_s == pytest.approx(16 * result.samples_per_s, rel=0.01)
    assert result.as_dict()["tokens_per_s"] == result.tokens_per_s
    capsys.readouterr()  # what the run has printed
    found = compared(path, "--price", 1)["runs"][0]
    assert found["tokens_per_s"] == pytest.approx(16 * found["samples_per_s"])
    assert (found["recoveries"], found["steps"], found["state"]) == (1, result.steps, "finished")
    assert 0 < found["lost_s"] < found["wall_s"]
    assert found["loss"] == found["loss_at_equal_samples"]
    assert found["weights_sha256"] == result.weights_sha256
    assert [name for name, value in found.items() if value is None] == []
