"""Each `holdfast bench` command starts a benchmark that exists, with the given options."""

import importlib.util
import subprocess
import sys

import pytest
import typer

from holdfast_bench.cli import run
from holdfast_bench.cli.bench import app
from holdfast_bench.results.conditions import Stopwatch
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import BY_NAME


@pytest.fixture
def started(monkeypatch):
    """The benchmarks that were started, with their options."""
    found = []

    def measure(name, options, folder=None):
        found.append((name, options))
        return Result(benchmark=name, options=(), conditions=Stopwatch().conditions(), rows=())

    monkeypatch.setattr(run, "measure", measure)
    return found


def call(*words):
    typer.main.get_command(app)(list(words), standalone_mode=False)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_bench_command_starts_its_own_module(name, started):
    call(name, "--json")
    assert [each for each, _ in started] == [name]
    assert importlib.util.find_spec(f"holdfast_bench.{name}")


def test_bench_recovery_passes_commands_to_compare_on(started):
    call("recovery", "--compare", "mine=true", "--compare", "other=false", "--json")
    options = started[0][1]
    assert options[options.index("--compare") :][:4] == [
        "--compare", "mine=true", "--compare", "other=false",
    ]  # fmt: skip


def test_quick_options_replace_defaults_only(started):
    call("recovery", "--quick", "--rounds", "7", "--json")
    options = started[0][1]
    assert options[options.index("--rounds") + 1] == "7"
    assert options[options.index("--workloads") + 1] == BY_NAME["recovery"].quick["workloads"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["qlora", "--hosts", "1,x"], "argument --hosts: '1,x' must be numbers above 0"),
        (["emulate", "--hosts", "0"], "argument --hosts: '0' must be numbers above 0"),
        (["qlora", "--model", "/nowhere"], "config.json: No such file or directory"),
        (["scenarios", "--scenarios", "flood"], "no scenario flood; there are worker-killed"),
    ],
    ids=["words", "none", "no folder", "no scenario"],
)
def test_bad_input_is_a_sentence(words, says):
    command = [sys.executable, "-m", "holdfast", "bench", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
