"""What a host and its workers use is sampled; GPUs with a stand-in for the driver."""

import json
import os
import subprocess
import sys
import time

import pytest

import nvml_stand_in
from holdfast.hardware.system import SystemSampler
from holdfast.linux.host_memory import total_bytes
from nvml_stand_in import needs_gcc

SAMPLE = """
import json, sys
from holdfast.hardware.system import SystemSampler
from holdfast.hardware.system_sample import ADAPTER
names = json.loads(sys.argv[1])
sample = SystemSampler("h1", names).sample({})
print(json.dumps(ADAPTER.dump_python(sample, mode="json")["gpus"]))
"""
BOTH = ["GPU-3060", "GPU-1650"]


def test_a_busy_worker_and_its_host_are_seen():
    sampler = SystemSampler("h1", [])
    assert sampler.sample({os.getpid(): 3}).workers == (), "nothing to compare it with yet"
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    sample = sampler.sample({os.getpid(): 3, 1 << 30: 4})
    (worker,) = sample.workers
    assert worker.rank == 3, "a process that has exited is left out"
    assert 0.05 < worker.cpu < 4
    assert 1 << 20 < worker.memory_bytes < total_bytes()
    assert sample.host == "h1"
    assert 0 < sample.cpu <= 1
    assert 0 < sample.memory_bytes < sample.memory_total_bytes == total_bytes()
    assert sample.network_receive_bytes_per_s >= 0
    assert sample.gpus == ()


@pytest.fixture
def gpus(tmp_path):
    """The GPUs that a process samples, of the stand-in: `gpus(names, flag, …) -> list`."""

    def sampled(names, *flags, **more):
        environment = {**nvml_stand_in.build(tmp_path, *flags), **more}
        done = subprocess.run(
            [sys.executable, "-c", SAMPLE, json.dumps(names)], env={**os.environ, **environment},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return sampled


@pytest.mark.slow
@needs_gcc
def test_a_gpu_reports_what_it_does_or_nothing(gpus):
    hot, cool = gpus(BOTH)
    assert hot == {
        "index": 0, "name": "NVIDIA GeForce RTX 3060", "utilization": 0.97,
        "memory_bytes": 1 << 30, "memory_total_bytes": 12 << 30, "temperature_c": 86.0,
        "power_w": 168.5,
    }  # fmt: skip
    assert (cool["utilization"], cool["power_w"]) == (0.0, None)
    assert [each["index"] for each in gpus(BOTH[::-1])] == [1, 0], "as workers take them"
    assert gpus([]) == gpus(BOTH, "-DBROKEN") == []


@pytest.mark.slow
@needs_gcc
def test_an_instance_of_a_gpu_reports_its_memory_and_not_that_of_the_gpu(gpus):
    instance, cool = gpus(["MIG-5b2d", "GPU-1650"], NVML_STAND_IN_MIG="1")
    assert instance == {
        "index": 3, "name": "NVIDIA GeForce RTX 3060 MIG 1g.3gb", "utilization": None,
        "memory_bytes": 1 << 28, "memory_total_bytes": 3 << 30, "temperature_c": None,
        "power_w": None,
    }  # fmt: skip
    assert cool["index"] == 1
