"""Each `holdfast bench` command forwards its words to a benchmark that exists."""

import re
import subprocess
import sys

import pytest
import typer

from holdfast_bench.cli import run
from holdfast_bench.cli.bench import app
from holdfast_bench.results.conditions import Stopwatch
from holdfast_bench.results.result import Result
from holdfast_bench.run import main
from holdfast_bench.suite.catalogue import BENCHMARKS, BY_NAME


@pytest.fixture
def started(monkeypatch):
    """The benchmarks that were started, with their words."""
    found = []

    def measure(name, words, folder=None):
        found.append((name, words))
        return Result(benchmark=name, options=(), conditions=Stopwatch().conditions(), rows=())

    monkeypatch.setattr(run, "measure", measure)
    return found


@pytest.fixture
def in_this_process(monkeypatch, capsys):
    """Run a benchmark without its command: `in_this_process(word, …) -> status, output, errors`."""

    def measure(*words):
        monkeypatch.setattr(sys, "argv", ["run", *words])
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return measure


def call(*words):
    typer.main.get_command(app)(list(words), standalone_mode=False)


def test_words_are_forwarded_as_they_are(started):
    words = ["--compare", "mine=true", "--compare", "other=false", "--rounds=7"]
    call("recovery", *words[:2], "--json", *words[2:])
    assert started == [("recovery", words)]


def test_the_words_of_quick_come_first(started):
    call("recovery", "--rounds", "7", "--quick", "--json")
    assert started == [("recovery", [*BY_NAME["recovery"].quick_words, "--rounds", "7"])]


def said(*words):
    command = [sys.executable, "-m", "holdfast", "bench", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_help_lists_the_names_with_a_line_each():
    lines = said("--help").stdout.splitlines()
    for each in BENCHMARKS:
        assert any(re.search(rf"\b{each.name} +{re.escape(each.text)}", line) for line in lines)


def options_of(text):
    return {*re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda each: each.name)
def test_help_of_a_benchmark_has_the_options_of_quick(in_this_process, benchmark):
    status, output, _ = in_this_process(benchmark.name, "--help")
    assert f"usage: holdfast bench {benchmark.name}" in output
    assert {f"--{name}" for name in benchmark.quick} <= options_of(output)
    assert status == 0


@pytest.mark.slow
def test_help_of_a_command_is_that_of_its_module(in_this_process):
    done = said("heartbeat", "--help")
    _, output, _ = in_this_process("heartbeat", "--help")
    assert options_of(done.stdout) == options_of(output) | {"--quick", "--output", "--json"}
    assert done.returncode == 0


@pytest.mark.slow
def test_a_command_says_what_is_wrong_as_its_module_does():
    done = said("startup", "--rounds", "0")
    assert done.returncode == 2
    assert "argument --rounds: '0' must be a number above 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["qlora", "--hosts", "1,x"], "argument --hosts: '1,x' must be numbers above 0"),
        (["startup", "--runs", "2"], "unrecognized arguments: --runs 2"),
        (["emulate", "--hosts", "0"], "argument --hosts: '0' must be numbers above 0"),
        (["qlora", "--model", "/nowhere"], "config.json: No such file or directory"),
        (["scenarios", "--scenarios", "flood"], "no scenario flood; there are worker-killed"),
    ],
    ids=["words", "unknown", "none", "no folder", "no scenario"],
)
def test_bad_input_is_a_sentence(in_this_process, words, says):
    status, _, errors = in_this_process(*words)
    assert status in (1, 2)
    assert says in errors
