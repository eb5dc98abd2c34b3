"""Memory that outlives its worker, by calls of NVIDIA's driver; here on a stand-in for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvml_stand_in import needs_gcc

pytestmark = needs_gcc

SIZE = 3 << 20
MAPPING = ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]
CALLS = [
    *("cuMemCreate", "cuMemExportToShareableHandle", *MAPPING),
    *("cuMemImportFromShareableHandle", *MAPPING),
]
"""Calls that may fail: of an owner, then of a peer."""
SOURCE = Path(__file__).parents[1] / "cuda_stand_in.c"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The environment in which a process loads the stand-in."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True
    )
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


@pytest.fixture
def process(driver):
    """Start a process with the stand-in: `process("own", size)`."""
    started = []

    def start(*words, fds=()):
        command = [sys.executable, SOURCE.with_suffix(".py"), *map(str, words)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=driver, pass_fds=fds, text=True, **pipes))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_memory_outlives_its_owner_while_a_descriptor_is_open(process):
    owner = process("own", SIZE)
    fd, mappings, descriptors = map(int, owner.stdout.readline().split())
    assert (mappings, descriptors) == (1, 1), "the driver's own handle was released"
    held = os.open(f"/proc/{owner.pid}/fd/{fd}", os.O_RDWR)  # as the agent holds it
    owner.kill()
    owner.wait()
    output, errors = process("read", held, SIZE, fds=[held]).communicate()
    os.close(held)
    assert not errors
    assert output.split() == ["0", "0", "0"], "bytes that differ, mappings, descriptors"


def test_a_call_that_fails_is_named_with_its_device_and_leaves_nothing(process):
    output, errors = process("fail", SIZE).communicate()
    assert not errors
    before, *failures, tensor = output.splitlines()
    assert before == "1 1", "mappings, descriptors"
    assert failures == [f"{call} on cuda:3: out of memory (2) | 1 | 1" for call in CALLS]
    assert tensor == "no tensor | 1 | 1"
