"""Kernels: what a processor computes, and what another one is shown to compute by emulation."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from conftest import needs_avx2
from holdfast.job.settings import PINNED

PROGRAM = """
import json, torch
torch.set_num_threads(1)
from holdfast.worker.checks.kernels import kernel_digests
print(json.dumps(kernel_digests()))
"""


def digests(*emulator, **variables):
    done = subprocess.run(
        [*emulator, sys.executable, "-c", PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def pinned():
    return digests(**PINNED)


@pytest.mark.slow
@pytest.mark.full
def test_digests_are_the_same_in_every_process(pinned):
    assert digests(**PINNED) == pinned


@pytest.mark.slow
@needs_avx2
@pytest.mark.skipif(not torch.__version__.startswith("2.13.0"), reason="digest of torch 2.13.0")
def test_pinned_kernels_are_those_of_the_amd_and_intel_processors_of_decision_21(pinned):
    assert pinned["kernels"] == "face5b1bdcdf1e83"


@pytest.mark.soak
@needs_avx2
@pytest.mark.timeout(900)  # emulation is slow
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="needs Debian's package qemu-user")
@pytest.mark.parametrize("processor", ["Skylake-Client", "Haswell", "EPYC-Rome"])
def test_pinned_kernels_are_those_of_other_makers(processor, pinned):
    emulated = digests("qemu-x86_64", "-cpu", processor, **PINNED)
    assert emulated["kernels"] == pinned["kernels"]
