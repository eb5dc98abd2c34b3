"""Portable numerics: whole runs with the weights that processors of other makers gave."""

import pytest
import torch

import holdfast
from conftest import needs_avx2

ON_AMD_AND_INTEL = "c23c866daa303d58"
"""First digits of the weights on an AMD EPYC and on an Intel Xeon: decision 21."""


@pytest.mark.soak
@pytest.mark.slow
@needs_avx2
@pytest.mark.skipif(not torch.__version__.startswith("2.13.0"), reason="weights of torch 2.13.0")
def test_weights_are_those_of_the_amd_and_intel_processors_of_decision_21(tmp_path):
    result = holdfast.train(
        "digits",
        {
            "model": {"name": "mlp", "hidden": [208, 112], "dropout": 0},
            "epochs": 5,
            "numerics": "portable",
            "workers": 2,
        },
        run_dir=tmp_path / "run",
    )
    assert result.weights_sha256[:16] == ON_AMD_AND_INTEL
    assert result.exactness == "bit-exact"
