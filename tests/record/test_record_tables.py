"""Tables and charts of a run: what is written reads back, with as many rows."""

import csv
import json

import pytest
from PIL import Image
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.errors import JobError

EVENTS = [
    {"time_unix_s": 90.0, "event": "run-started", "workers": 2, "pid": 1},
    {"time_unix_s": 99.0, "event": "generation-started", "number": 1, "members": [0, 1], "step": 0,
     "last_committed_step": 0, "from_checkpoint": True, "checkpoint": None},
    {"time_unix_s": 101.75, "event": "worker-exited", "rank": 1, "pid": 7, "status": -9,
     "cause": "was killed by SIGKILL", "error": "", "unexpected": True},
    {"time_unix_s": 101.8, "event": "generation-started", "number": 2, "members": [0, 1],
     "step": 3, "last_committed_step": 3, "from_checkpoint": False, "checkpoint": None},
    {"time_unix_s": 102.1, "event": "checkpoint-committed", "step": 4, "directory": "gone"},
    {"time_unix_s": 104.0, "event": "run-ended", "status": "finished", "steps": 6},
]  # fmt: skip
REPORT = {
    "number": 1, "time_unix_s": 102.0, "outcome": "recovered",
    "causes": [{"who": "rank 1", "rank": 1, "what": "was killed", "injected_fault": "",
                "stack": []}],
    "step": 3, "ended": [], "halted": [0], "seconds": {"all ready": 0.05, "next step": 0.2},
    "total_s": 0.25, "checkpoint": None, "recomputed_steps": 0, "recomputed_samples": 0,
}  # fmt: skip
STEPS = [
    {"step": step, "epoch": 0, "loss": 1 / step, "norm": 1.0, "lr": 0.1, "samples": 8,
     "logged": {"half": 0.5} if step > 2 else {}, "seconds": None if step == 1 else 0.5,
     "phases": {"forward": 0.3, **({"checkpoint": 0.1} if step == 5 else {})},
     "workers": {"rank": [0, 1], "shards": [3, 1], "forward": [0.3, 0.1]},
     "time_unix_s": 100 + step / 2}
    for step in range(1, 7)
]  # fmt: skip
EVALUATION = {"step": 6, "evaluation": {"right": 0.5, "counts": [[1, 2], [3, 4]], "word": None}}
ROWS = {
    "steps": 6, "workers": 12, "evaluations": 1, "events": 6, "recoveries": 1, "checkpoints": 1,
}  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    files = {
        "events.jsonl": EVENTS,
        "metrics.jsonl": [*STEPS, EVALUATION],
        "recoveries.jsonl": [REPORT],
    }
    path = tmp_path / "run"
    path.mkdir()
    for name, entries in files.items():
        (path / name).write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path


def export(*words):
    return CliRunner().invoke(app.app, ["export", *map(str, words)], catch_exceptions=True)


def test_csv_files_read_back_with_as_many_rows(run_dir):
    done = export(run_dir, "--format", "csv")
    assert done.exit_code == 0
    assert f"{run_dir / 'tables' / 'workers.csv'}  12 rows" in done.output
    tables = {}
    for path in (run_dir / "tables").iterdir():
        with path.open(newline="") as file:
            tables[path.stem] = list(csv.DictReader(file))
    assert {name: len(rows) for name, rows in tables.items()} == ROWS
    assert tables["steps"][2]["loss"] == str(1 / 3)
    assert (tables["steps"][0]["half"], tables["steps"][2]["half"]) == ("", "0.5")
    assert tables["evaluations"][0]["counts"] == "[[1, 2], [3, 4]]"
    assert tables["events"][2]["text"] == "rank 1 was killed by SIGKILL"
    assert tables["recoveries"][0]["all_ready_s"] == "0.05"
    assert float(tables["checkpoints"][0]["seconds"]) == pytest.approx(0.1)


@pytest.mark.slow
def test_parquet_files_read_back_with_as_many_rows_and_types(run_dir, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(run_dir, tmp_path / "out", "--format", "parquet").exit_code == 0
    tables = {path.stem: parquet.read_table(path) for path in (tmp_path / "out").iterdir()}
    assert {name: table.num_rows for name, table in tables.items()} == ROWS
    assert str(tables["steps"].schema.field("step").type) == "int64"
    assert tables["workers"].slice(1, 1).to_pylist() == [
        {"step": 1, "rank": 1, "shards": 1, "forward_s": 0.1}
    ]


def test_the_tables_of_a_run_without_any_row_have_their_columns(tmp_path):
    (tmp_path / "events.jsonl").touch()
    assert export(tmp_path, "--format", "csv").exit_code == 0
    assert (tmp_path / "tables" / "workers.csv").read_text() == "step,rank,shards\n"


@pytest.mark.slow
@pytest.mark.parametrize("is_empty", [False, True])
def test_charts_are_a_picture(run_dir, is_empty):
    if is_empty:
        (run_dir / "metrics.jsonl").unlink()
    assert export(run_dir, "--format", "png").exit_code == 0
    with Image.open(run_dir / "record.png") as picture:
        assert picture.size == (1080, 840)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "csv", "--best"], "do not go with --format"),
        ([], "name the FILE for the weights, or --format"),
        (["{run}/events.jsonl", "--format", "csv"], "events.jsonl"),
        (["{run}/events.jsonl", "--format", "png"], "exists; --force replaces it"),
    ],
)
def test_what_cannot_be_written_is_refused(run_dir, words, message):
    done = export(run_dir, *(word.format(run=run_dir) for word in words))
    assert isinstance(done.exception, JobError)
    assert message in str(done.exception)


def test_files_that_exist_are_kept_unless_forced(run_dir):
    assert export(run_dir, "--format", "csv").exit_code == 0
    assert "--force" in str(export(run_dir, "--format", "csv").exception)
    assert export(run_dir, "--format", "csv", "--force").exit_code == 0


@pytest.mark.slow
def test_a_notebook_gets_the_tables_of_a_run(run_dir):
    run = holdfast.load_run(run_dir)
    assert {name: getattr(run, name).num_rows for name in ROWS} == ROWS
    assert run.steps["step"] == [1, 2, 3, 4, 5, 6]
    assert run.workers["shards"][:2] == [3, 1]
    assert (run.state.name, run.goodput.total_s, run.result) == ("finished", 14, None)
    assert repr(run) == f"<run {run_dir}: finished, 6 steps>"
    assert repr(run.checkpoints).startswith("<Table checkpoints: 1 rows, columns step, time")
    assert len(run.figure().axes) == 3


@pytest.mark.slow
def test_tables_convert_to_pandas_and_arrow(run_dir):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    run = holdfast.load_run(run_dir)
    assert run.steps.to_pandas()["samples"].sum() == 48
    assert run.evaluations.to_arrow().num_rows == 1


def test_a_run_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(JobError, match="contains no run"):
        holdfast.load_run(tmp_path / "absent")


def test_goodput_is_shown_as_a_table_and_as_json(run_dir):
    done = CliRunner().invoke(app.app, ["goodput", str(run_dir)])
    assert done.exit_code == 0
    assert "where the time went" in done.output
    assert "initialization" in done.output
    assert "of 0:00:14 was useful; goodput 3.4 samples per second" in done.output
    done = CliRunner().invoke(app.app, ["goodput", str(run_dir), "--json"])
    found = json.loads(done.output)
    assert sum(found["seconds"].values()) == pytest.approx(found["total_s"], abs=1e-4)
    assert found["goodput"] == pytest.approx(found["seconds"]["useful"] / 14, abs=1e-4)
