"""GPUs that a process may use have one name each, whatever CUDA_VISIBLE_DEVICES calls them."""

import json
import os
import subprocess
import sys

import pytest

from nvml_stand_in import build, needs_gcc

GPUS = """
import json, os
from pathlib import Path
from holdfast.hardware.host_supply import gpus_here
print(json.dumps(gpus_here(os.environ, Path(os.environ["ROOT"]))))
"""
MIG = {"NVML_STAND_IN_MIG": "1"}
BOTH = ["GPU-3060", "GPU-1650"]
INSTANCES = ["MIG-5a1c", "MIG-5b2d"]


@pytest.fixture
def found(tmp_path):
    """The GPUs of a machine: `found(names in CUDA_VISIBLE_DEVICES or None, folders, **variables)`.

    Its folders are the beginning of `/dev` and `/proc`.
    """

    def run(names, *files, **more):
        for file in files:
            (tmp_path / file).mkdir(parents=True)
        environment = {**os.environ, "ROOT": str(tmp_path), **more}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if names is not None:
            environment["CUDA_VISIBLE_DEVICES"] = names
        command = [sys.executable, "-c", GPUS]
        done = subprocess.run(command, env=environment, check=True, capture_output=True)
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return {"LD_LIBRARY_PATH": build(tmp_path_factory.mktemp("driver"))["LD_LIBRARY_PATH"]}


@needs_gcc
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("1,0", BOTH[::-1]),
        ("GPU-3,1", BOTH),
        ("0,GPU-3060,0", BOTH[:1]),
        ("0,2,1", BOTH[:1]),
        ("0,MIG-5a1c", BOTH[:1]),
        ("", []),
        ("-1", []),
    ],
)
def test_numbers_and_uuids_of_a_gpu_are_one_name(found, driver, names, expected):
    assert found(names, **driver) == expected


@needs_gcc
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("MIG-5b,MIG-5a1c", INSTANCES[::-1]),
        ("MIG-GPU-3060/7/0,MIG-GPU-3060/9/0,MIG-5a1c", INSTANCES),
        ("MIG-GPU-3060/9/1", []),
        ("0", INSTANCES),
        ("1", BOTH[1:]),
    ],
)
def test_instances_have_their_uuids_also_by_older_names(found, driver, names, expected):
    assert found(names, **driver, **MIG) == expected


@needs_gcc
def test_without_a_variable_all_that_the_driver_lists_count(found, driver):
    assert found(None, **driver) == [], "nothing says that there is a driver"
    assert found(None, "dev/nvidiactl", "proc/driver/nvidia/gpus/0000:41", **driver) == BOTH
    assert found(None, **driver, **MIG) == [*INSTANCES, "GPU-1650"]


def test_without_an_answer_of_the_driver_gpus_are_numbered(found):
    gpus = [f"proc/driver/nvidia/gpus/0000:{number}" for number in range(3)]
    assert found(None, *gpus) == ["0", "1", "2"]
    assert found("1,GPU-5a,1") == ["1", "GPU-5a"]
