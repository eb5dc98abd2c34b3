"""Builds the stand-in for the library of NVIDIA's driver."""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def build(folder, *flags):
    """Build it in `folder`; returns the environment in which a process loads it."""
    source, library = Path(__file__).with_suffix(".c"), folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", library, source], check=True
    )
    return {"LD_LIBRARY_PATH": str(folder), "CUDA_VISIBLE_DEVICES": "0,1"}
