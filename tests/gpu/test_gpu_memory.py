"""Section 1: memory outlives its owner, and two processes read each other's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checked_device import DEVICE, ON_GPU

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = 20 if ON_GPU else 3


def gpus():
    """The number of GPUs, found by another process: this one starts those that use them."""
    count = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", count], capture_output=True, check=True)
    return int(found.stdout)


def found(rounds, second=0):
    script = Path(__file__).with_name("memory_processes.py")
    command = [sys.executable, script, DEVICE, str(rounds), str(second)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def test_memory_outlives_an_owner_that_is_killed_while_it_computes(record_property):
    outcome = found(ROUNDS)
    record_property("same", outcome["same"])
    assert outcome == {"same": ROUNDS, "is_freed": True}


@pytest.mark.parametrize("second", [0, 1])
def test_two_processes_read_each_others_memory(record_property, second):
    if second and not (ON_GPU and gpus() > second):
        pytest.skip("needs two GPUs")
    outcome = found(0, second)
    record_property("gb_per_s", outcome["gb_per_s"])
    assert outcome["same"] == 2
