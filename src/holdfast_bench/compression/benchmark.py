"""What compressed gradients do to learning: loss by steps, and by the bytes that hosts send.

    none               gradients as they are
    other-seed         the same, from other weights and in another order: the size of chance
    bf16, int8, 4bit   each value rounded to so many bits
    topk               the largest 1 % of the values
    topk-no-feedback   the same, but what a step does not send is lost
    powersgd           matrices as products of two narrow ones

The images train a CNN by plain SGD, the text a GPT of 0.8 M parameters by AdamW. Each run is on two
hosts of this machine with a worker each, which exchange their gradients by TCP. All have the same
samples, steps and learning rates. Bytes are counted, not measured: those of gradients and buffers
that a host sends. The last step of a run, before its checkpoint, is sent as it is. A loss is the
mean over 20 steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.job import load
from holdfast_bench.arguments import add_names, count
from holdfast_bench.compression.curve import Curve, Traffic, compared
from holdfast_bench.compression.task import StepsTask
from holdfast_bench.on_hosts.runs import on_loopback
from holdfast_bench.results.result import Measured
from holdfast_bench.trial import Line

HOSTS: Final = 2
TIMEOUT_S: Final = 1800.0
NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Method:
    """A way to send gradients.

    Attributes:
        compression: The job's key.
        seed: Of the run.
    """

    compression: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


METHODS: Final = {
    NONE: Method(),
    "other-seed": Method(seed=1),
    "bf16": Method({"method": "bf16"}),
    "int8": Method({"method": "int8"}),
    "4bit": Method({"method": "4bit"}),
    "topk": Method({"method": "topk", "share": 0.01}),
    "topk-no-feedback": Method({"method": "topk", "share": 0.01, "error_feedback": False}),
    "powersgd": Method({"method": "powersgd"}),
}
WORKLOADS: Final[Mapping[str, Mapping[str, Any]]] = {
    "images": {
        "data": {"name": "digits"},
        "model": {"name": "cnn", "width": 32},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0},
        "schedule": {"name": "cosine", "warmup_steps": 30},
        "batch": 64,
    },
    "text": {
        "data": {"name": "text", "length": 64},
        "model": {"name": "gpt", "width": 128, "heads": 4, "layers": 4, "dropout": 0.0},
        "optimizer": {"name": "adamw", "lr": 0.002, "weight_decay": 0.1},
        "schedule": {"name": "cosine", "warmup_steps": 30},
        "clip_norm": 1.0,
        "batch": 16,
    },
}
"""Keys of the jobs."""


def job_keys(workload: str, method: str, steps: int, cifar: Path | None) -> dict[str, Any]:
    """The keys of a job."""
    keys = {
        **WORKLOADS[workload],
        "name": workload,
        "task": "holdfast_bench.compression.task:StepsTask",
        "params": {"steps": steps},
        "seed": METHODS[method].seed,
        "compression": METHODS[method].compression,
        "numerics": "fast",
        "workers": HOSTS,
        "checkpoint": {"every_steps": 0},
    }
    if workload == "images" and cifar is not None:
        keys["data"] = {"name": "cifar10", "path": str(cifar.absolute())}
    return keys


def trained(keys: dict[str, Any], timeout_s: float) -> tuple[Curve, Line]:
    """The curve and the result of a run.

    Raises:
        HoldfastError: It failed.
    """
    model = StepsTask(load.check(keys, where="bench").resolved()).model()
    with on_loopback(HOSTS, keys, timeout_s) as records:
        chosen = records.events("collective-chosen")
        traffic = Traffic.of(model, chosen[-1]["ratio"] if chosen else 1.0)
        return Curve([line["loss"] for line in records.steps()], traffic), records.result()


def rows_of(workload: str, runs: Mapping[str, tuple[Curve, Line]]) -> list[dict[str, Any]]:
    """One row per method."""
    curves = {method: curve for method, (curve, _) in runs.items()}
    at_same_bytes = compared(curves, NONE if NONE in curves else next(iter(curves)))
    return [
        {
            "workload": workload,
            "data": result["data"],
            "method": method,
            "seed": METHODS[method].seed,
            "steps": len(curve.losses),
            "kb_per_step": round(curve.traffic.step / 1e3, 2),
            "ratio": round(curve.traffic.whole / curve.traffic.step, 1),
            "sent_mb": round(curve.total / 1e6, 3),
            "train_loss": round(curve.final, 4),
            "test_loss": round(result["test_loss"], 4),
            "accuracy": round(result["accuracy"], 4) if "accuracy" in result else None,
            **at_same_bytes[method],
            "curve": curve.points,
        }
        for method, (curve, result) in runs.items()
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--workloads", WORKLOADS, "Workloads to train")
    add_names(parser, "--methods", METHODS, "Methods to compare")
    parser.add_argument("--steps", type=count, default=300, help="Steps of each run.")
    parser.add_argument(
        "--cifar",
        type=Path,
        metavar="DIR",
        help="The published files of CIFAR-10, for the images; by default scikit-learn's digits.",
    )


def run(options: argparse.Namespace) -> Measured:
    """Train every workload with every method.

    Raises:
        HoldfastError: A run failed.
    """
    rows: list[dict[str, Any]] = []
    for workload in options.workloads:
        runs = {}
        for method in options.methods:
            print(f"{workload}: {method}", file=sys.stderr)
            keys = job_keys(workload, method, options.steps, options.cifar)
            runs[method] = trained(keys, TIMEOUT_S)
        rows += rows_of(workload, runs)
    return Measured(rows=rows)
