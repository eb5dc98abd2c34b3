"""A run that loses something every few steps gives the weights of one that does not."""

import moving_soak
import pytest
from soak import soak

from holdfast_bench.on_hosts.namespaces import Namespaces

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_a_very_short_soak(forks, tmp_path):
    soak(forks, tmp_path, seed=7, steps=50, faults=8)


@pytest.mark.soak
def test_a_short_soak(forks, tmp_path):
    found = soak(forks, tmp_path, seed=7, steps=250, faults=40)
    assert len(found["injected"]) == 5


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_short_soak_over_hosts(tmp_path):
    if missing := Namespaces.what_is_missing():
        pytest.skip(missing)
    kinds = dict.fromkeys(("worker", "first", "cut", "hand over"), 1)
    problem, _ = moving_soak.soak(tmp_path, seed=4, faults=5, kinds=kinds)
    assert not problem
