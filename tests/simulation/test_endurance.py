"""Large clusters for a long time; `python -m holdfast_bench.simulation` runs the full sizes."""

from __future__ import annotations

import pytest

from holdfast_bench.simulation.endurance import endure


def test_a_small_cluster_gets_over_every_burst() -> None:
    assert endure(hosts=20, seconds=500, bursts=5, seed=1).generations > 1


@pytest.mark.slow
@pytest.mark.soak
def test_a_thousand_hosts_get_over_hundreds_of_faults() -> None:
    endured = endure(hosts=1000, seconds=900, bursts=50, seed=0)
    assert endured.faults > 500
    assert endured.steps > 250


@pytest.mark.slow
@pytest.mark.soak
def test_three_thousand_hosts_get_over_every_burst() -> None:
    endured = endure(hosts=3000, seconds=300, bursts=4, seed=0)
    assert endured.faults > 40
    assert endured.steps > 100
