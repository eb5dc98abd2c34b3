"""Readiness: which promises are proven, and by which tests. A test makes sure that they exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["proven", "emulated", "not yet proven"]
SIGNS: Final[dict[Status, str]] = {"proven": "✓", "emulated": "●", "not yet proven": "–"}


@dataclass(frozen=True, slots=True)
class Aspect:
    """One promise.

    Attributes:
        name: What is promised.
        status: How far that is shown.
        test: The test that shows it, as a path in the repository; what is missing otherwise.
    """

    name: str
    status: Status
    test: str


ASPECTS: Final = (
    Aspect("Same weights for any number of workers", "proven", "tests/runs/test_any_world_size.py"),
    Aspect("Worker killed, hung or failing", "proven", "tests/runs/test_recovery.py"),
    Aspect("All workers restart from a checkpoint", "proven", "tests/runs/test_restart.py"),
    Aspect("Coordinator or agent killed", "proven", "tests/runs/test_control_failures.py"),
    Aspect("Damaged checkpoint, full disk", "proven", "tests/runs/test_saving_in_runs.py"),
    Aspect("Scripts for torchrun", "proven", "tests/runs/test_script_failures.py"),
    Aspect("Workers of unlike speed", "proven", "tests/runs/test_balance.py"),
    Aspect("Frozen weights once a host", "proven", "tests/runs/test_frozen_weights.py"),
    Aspect("Several hosts, a lost host", "emulated", "tests/runs/test_namespaces.py"),
    Aspect("Scaling to 16 hosts", "emulated", "tests/bench/test_emulate.py"),
    Aspect("One GPU, shared by workers", "proven", "tests/gpu/test_gpu_weights.py"),
    Aspect("Several GPUs, NCCL", "not yet proven", "no run of tests/gpu/run on several GPUs"),
    Aspect("Mistral-7B on a GPU", "not yet proven", "no run of tests/gpu/run with this model"),
)
