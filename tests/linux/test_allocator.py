"""What a process has freed is the kernel's again, if the process says so."""

import subprocess
import sys

import pytest

from holdfast.launch.spawn import worker_environment

FREE = """
import re, sys
import torch
from holdfast.linux import allocator

def resident_mb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

if sys.argv[1:]:
    allocator.return_freed_blocks()
before = resident_mb()
blocks = [torch.ones(1 << 20) for _ in range(16)]
end = torch.ones(64)  # what lies above the blocks keeps them from being trimmed
del blocks
print(resident_mb() - before)
"""


@pytest.mark.slow
def test_freed_blocks_of_a_worker_go_back_only_if_it_says_so():
    def growth_mb(*words):
        command = [sys.executable, "-c", FREE, *words]
        return float(subprocess.check_output(command, env=worker_environment(), timeout=60))

    assert growth_mb() > 60
    assert growth_mb("return") < 10
