"""A run that loses something every few steps gives the weights of one that does not."""

import pytest
from soak import soak

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_a_very_short_soak(forks, tmp_path):
    soak(forks, tmp_path, seed=7, steps=50, faults=8)


@pytest.mark.soak
def test_a_short_soak(forks, tmp_path):
    found = soak(forks, tmp_path, seed=7, steps=250, faults=40)
    assert len(found["injected"]) == 5
