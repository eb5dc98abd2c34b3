"""The suite runs every benchmark, keeps results, and continues after a failure."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from holdfast_bench.cli.suite import app
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import BY_NAME
from holdfast_bench.suite.run_all import options_of, run_all

FAST = replace(BY_NAME["heartbeat"], quick={"intervals": "0.5", "agents": "1", "seconds": "1"})
SCHEMA = Path(__file__).parents[2] / "docs" / "benchmarks" / "result.schema.json"


def commands():
    return typer.main.get_command(app).commands


def test_every_benchmark_has_a_module_and_a_command():
    assert {*BY_NAME, "all", "compare", "cost"} == commands().keys()
    for name in BY_NAME:
        assert importlib.util.find_spec(f"holdfast_bench.{name}") is not None


def test_the_schema_of_results_is_current():
    assert json.loads(SCHEMA.read_text()) == Result.model_json_schema()


@pytest.mark.slow
@pytest.mark.full
def test_results_are_kept_under_the_same_options_only(tmp_path):
    notes = []
    chosen = [FAST]

    def run(**keys):
        keys = {"quick": True, "peers_python": None, "note": notes.append} | keys
        return [each.outcome for each in run_all(chosen, tmp_path, **keys)]

    assert run() == ["measured"]
    assert run() == ["kept"]
    first = Result.load(tmp_path / "heartbeat.json")
    assert first.options == tuple(options_of(chosen[0], quick=True, peers_python=None))
    changed = first.model_copy(update={"options": ("--seconds", "3")})
    changed.save(tmp_path)
    assert run() == ["measured"]
    (tmp_path / "heartbeat.json").write_text("{}")
    assert run() == ["measured"]
    assert "is kept" in notes[1]


@pytest.mark.slow
def test_a_failed_benchmark_does_not_end_the_others(tmp_path):
    wrong = replace(BY_NAME["scenarios"], quick={"scenarios": "flood"})
    notes = []
    done = run_all([wrong, FAST], tmp_path, quick=True, peers_python=None, note=notes.append)
    assert [each.outcome for each in done] == ["failed", "measured"]
    assert notes[1] == "bench scenarios ended with 2; what it printed is above"
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


@pytest.mark.slow
@pytest.mark.full
def test_the_command_stores_what_it_shows(tmp_path):
    given = FAST.quick_words
    command = [sys.executable, "-m", "holdfast", "bench", "heartbeat", *given, "--quick"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path), "--json"], check=True, capture_output=True, text=True
    )
    stored = Result.load(tmp_path / "heartbeat.json")
    assert Result.model_validate_json(done.stdout) == stored
    assert stored.options == (*BY_NAME["heartbeat"].quick_words, *given)
    assert len(stored.rows) == 1  # given ones win over quick ones
    assert stored.conditions.cores >= 1
