"""Each `holdfast bench` command starts a benchmark that exists and knows its options."""

import importlib.util

import pytest
import typer

from holdfast.cli import bench

NAMES = sorted(typer.main.get_command(bench.app).commands)


@pytest.mark.parametrize("name", NAMES)
def test_bench_command_starts_its_own_module(name, monkeypatch):
    started = []
    monkeypatch.setattr(bench, "_run", lambda module, options, **_: started.append(module))
    typer.main.get_command(bench.app)([name], standalone_mode=False)
    assert started == [name]
    assert importlib.util.find_spec(f"holdfast.bench.{name}")


def test_bench_recovery_passes_commands_to_compare_on(monkeypatch):
    started = []
    monkeypatch.setattr(bench, "_run", lambda _, options, **__: started.extend(options))
    arguments = ["recovery", "--compare", "mine=true", "--compare", "other=false"]
    typer.main.get_command(bench.app)(arguments, standalone_mode=False)
    assert started[-4:] == ["--compare", "mine=true", "--compare", "other=false"]
