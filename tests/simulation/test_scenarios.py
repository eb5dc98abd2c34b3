"""Histories that were read through once happen again in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from holdfast_bench.simulation import scenario

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_written(path: Path) -> None:
    wanted = scenario.load(path)
    simulation = scenario.play(wanted)
    now = yaml.safe_dump({"history": simulation.log}, width=1000)
    assert simulation.run is not None
    assert simulation.run.reason == wanted.ends
    assert tuple(simulation.log) == wanted.history, f"if this is right, write into {path}:\n{now}"
