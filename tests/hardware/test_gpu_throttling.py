"""Throttling of GPUs is counted as the driver reports it; with a stand-in for the driver."""

import json
import os
import subprocess
import sys

import pytest

import nvml_stand_in
from holdfast.hardware.nvml import GpuThrottling
from nvml_stand_in import needs_gcc

IDLE, POWER_CAP, HEAT, SYNC_BOOST = 0x1, 0x4, 0x20, 0x10
REFUSED = -1
COUNT = """
import json, pathlib, sys
from holdfast.hardware.nvml import GpuThrottling
uuid, file, *looks = sys.argv[1:]
file = pathlib.Path(file)
file.write_text(looks[0])
now = 0.0
throttling = GpuThrottling(uuid, clock=lambda: now)
found = []
for look in looks[1:]:
    file.write_text(look)
    now += EVERY_S
    found.append(throttling.since_last_ns(5_000_000) / 1e6)
print(json.dumps(found))
"""


@pytest.fixture
def counted(tmp_path):
    """What is counted with each look, milliseconds, of 5 in which the GPU has computed:
    `counted(uuid, (ms by power, ms by heat, reasons), …)`. The first look makes the counter, and
    the others come `every_s` later.
    """

    def count(uuid, *looks, flags=(), every_s=1):
        file = tmp_path / "looks"
        environment = nvml_stand_in.build(tmp_path, *flags) | {"NVML_STAND_IN_FILE": str(file)}
        words = (" ".join(map(str, look)) for look in looks)
        done = subprocess.run(
            [sys.executable, "-c", COUNT.replace("EVERY_S", str(every_s)), uuid, file, *words],
            env={**os.environ, **environment},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return count


@pytest.mark.slow
@needs_gcc
def test_the_driver_counts_throttling_by_power_and_by_heat(counted):
    looks = (700, 0, 0), (1100, 0, 0), (1100, 200, HEAT), (1300, 1000, 0), (1300, 1000, HEAT)
    found = counted("GPU-3060", *looks, (0, 0, 0), (2000, 0, 0))
    assert found == [2, 1, 4, 0, 0, 5], "a share of what was computed, by the longer one"
    looks = (REFUSED, 90, 0), (REFUSED, 290, 0)
    assert counted("GPU-3060", *looks) == [1], "one kind is enough"


@pytest.mark.slow
@needs_gcc
def test_the_driver_is_asked_once_a_second(counted):
    looks = [(at, 0, 0) for at in (0, 400, 800, 900, 900, 900)]
    assert counted("GPU-3060", *looks, every_s=0.5) == [0, 4, 4, 0.5, 0.5]


@pytest.mark.slow
@needs_gcc
def test_without_counters_the_whole_time_counts_if_the_gpu_is_slowed_down_now(counted):
    reasons = 0, HEAT, POWER_CAP | IDLE, IDLE, SYNC_BOOST
    looks = ((REFUSED, REFUSED, each) for each in reasons)
    assert counted("GPU-3060", *looks) == [5, 5, 0, 0]


@pytest.mark.slow
@needs_gcc
def test_a_gpu_that_reports_nothing_is_not_throttled(counted):
    looks = (700, 90, HEAT), (900, 400, HEAT)
    assert counted("GPU-1650", *looks) == [0]
    assert counted("GPU-of-another-host", *looks) == [0]
    assert counted("GPU-3060", *looks, flags=["-DBROKEN"]) == [0]


def test_without_a_driver_nothing_is_counted():
    assert GpuThrottling("GPU-of-no-host").since_last_ns(5_000_000) == 0
