"""Speed on a GPU: one worker of holdfast compared with the loop that people write without it.

    python tests/gpu/speed.py [--rounds N] [CHECK …]

The plain loop has its batches in pinned memory beforehand, and the same model, optimizer, precision
and batch size. Both run in turn in each round; a ratio is the median over the rounds. A check
fails if holdfast is slower than its limit. The last line says whether all passed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.arena.base_cache import cached_base
from holdfast.job import load
from holdfast.tasks import reference

WARM_STEPS = 10


@dataclass(frozen=True)
class Check:
    """What is compared.

    Attributes:
        name: Of the check.
        words: The job, as on the command line.
        at_least: The smallest ratio of holdfast's speed to the plain loop's.
        steps: How many are timed.
    """

    name: str
    words: tuple[str, ...]
    at_least: float
    steps: int


CHECKS = (
    Check("resnet50", ("resnet50", "data.size=6400", "batch=128", "epochs=1"), 0.95, 40),
    Check(
        "gpt2",
        ("gpt2", "data={name: synthetic-text, size: 262144, length: 128}", "batch=32", "epochs=1"),
        0.95,
        40,
    ),
    Check(
        "qlora",
        (
            "qlora",
            "data={name: synthetic-text, size: 150000, length: 512}",
            "batch=8",
            f"model.cache={tempfile.gettempdir()}/holdfast-gpu-bases",
        ),
        1.0,
        20,
    ),
)
NAMES = [check.name for check in CHECKS]
SAME = ("workers=1", "device=cuda", "precision=bf16", "checkpoint.every_steps=0")


def plain_steps_per_s(check: Check) -> float:
    """Steps per second of a loop without holdfast."""
    job = load.load(check.words[0], [*check.words[1:], *SAME]).resolved()
    task = reference.load(job.task)(job)
    torch.manual_seed(0)
    if hasattr(task, "frozen"):
        task.tensors = {each.name: _base(each) for each in task.frozen()}
    model = task.model().cuda()
    optimizer = task.optimizer([p for p in model.parameters() if p.requires_grad])
    data, generator = task.training_data(), torch.Generator().manual_seed(0)
    batches = [_pinned(data.batch(_indices(n, job.batch, len(data)), generator)) for n in range(8)]
    began = 0.0
    for step in range(WARM_STEPS + check.steps):
        if step == WARM_STEPS:
            torch.cuda.synchronize()
            began = time.perf_counter()
        batch = tuple(each.to("cuda", non_blocking=True) for each in batches[step % 8])
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            found = task.loss(model, batch)
        loss = found[0] if isinstance(found, tuple) else found
        loss.backward()
        optimizer.step()
        loss.item()  # holdfast reports the loss of each step, too
    torch.cuda.synchronize()
    return check.steps / (time.perf_counter() - began)


def _base(frozen: Any) -> Mapping[str, torch.Tensor]:
    return cached_base(frozen.cache, frozen.name, frozen.key, frozen.build).tensors


def _indices(number: int, batch: int, size: int) -> np.ndarray:
    return np.arange(number * batch, (number + 1) * batch, dtype=np.int64) % size


def _pinned(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(each.pin_memory() for each in batch)


def holdfast_steps_per_s(check: Check) -> float:
    """Steps per second of a worker of holdfast; prints what its phases take."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "train",
            *check.words,
            *SAME,
            "--run",
            str(run),
        ]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert not ended.returncode, ended.stderr
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    counted = steps[WARM_STEPS : WARM_STEPS + check.steps]
    assert len(counted) == check.steps, f"{check.name} has only {len(steps)} steps"
    phases = {
        name: statistics.median(1000 * line["phases"][name] for line in counted)
        for name in counted[0]["phases"]
    }
    print("    ms:", ", ".join(f"{name} {each:.1f}" for name, each in phases.items()))
    return check.steps / sum(line["seconds"] for line in counted)


def main() -> int:
    """Print a line for each check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="by default all")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("speed: no GPU with CUDA here")
        return 1
    failed = 0
    for check in [each for each in CHECKS if each.name in (options.checks or NAMES)]:
        pairs = [
            (holdfast_steps_per_s(check), plain_steps_per_s(check)) for _ in range(options.rounds)
        ]
        ratio = statistics.median(ours / plain for ours, plain in pairs)
        failed += ratio < check.at_least
        outcome = "passed" if ratio >= check.at_least else "FAILED"
        rates = ", ".join(f"{ours:.2f}/{plain:.2f}" for ours, plain in pairs)
        print(f"{check.name}: {ratio:.3f} x a plain loop, at least {check.at_least}: {outcome}")
        print(f"    steps per second, holdfast/plain: {rates}")
    print("all checks of speed passed" if not failed else f"{failed} checks of speed failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
