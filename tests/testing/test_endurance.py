"""Large clusters for a long time; the full sizes are those of `python -m holdfast.testing`."""

from __future__ import annotations

import pytest

from holdfast.testing.endurance import endure


def test_a_small_cluster_gets_over_every_burst() -> None:
    assert endure(hosts=20, seconds=120, bursts=5, seed=1).generations > 1


@pytest.mark.slow
def test_a_thousand_hosts_get_over_thousands_of_faults_in_an_hour() -> None:
    endured = endure(hosts=1000, seconds=3600, bursts=200, seed=0)
    assert endured.faults > 2000
    assert endured.steps > 1000


@pytest.mark.slow
def test_ten_thousand_hosts_get_over_every_burst() -> None:
    endured = endure(hosts=10_000, seconds=600, bursts=6, seed=0)
    assert endured.faults > 60
    assert endured.steps > 300
