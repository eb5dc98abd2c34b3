"""The device that the checks of this folder run on: a GPU if there is one, else a CPU with tiny
sizes. `HOLDFAST_CHECKED_DEVICE` names another one.
"""

import os

import torch

from conftest import sampled

DEVICE = os.environ.get("HOLDFAST_CHECKED_DEVICE") or (
    "cuda" if torch.cuda.is_available() else "cpu"
)
ON_GPU = DEVICE == "cuda"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is loaded


def on_cpu(cases, *kept):
    """All cases on a GPU; on a CPU, `make test` runs those at the positions `kept`."""
    return cases if ON_GPU else sampled(cases, *kept)
