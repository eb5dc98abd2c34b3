"""One worker on a GPU, compared with a plain loop of the same model, optimizer and samples.

Ratios are of the speed of the plain loop that is deterministic, too, and has as many micro-batches
as holdfast has shards; a micro-batch is as large as a shard. The plain loops share this process.
No loop waits for a loss before its end. Without a GPU tiny models are trained, and there are only
ratios, of the time of a processor.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.errors import HoldfastError, JobError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.runs.run import LaunchOptions
from holdfast_bench.arguments import add_rounds, count, names
from holdfast_bench.gpu.loads import LOADS, pinned
from holdfast_bench.gpu.meter import Meter, Reading
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import in_rounds
from holdfast_bench.trial import train

LARGE: Final = ("gpt2", "resnet50")
SMALL: Final = ("gpt2-small", "resnet50-small")
TINY: Final = ("gpt2-tiny", "resnet50-tiny")
BASE: Final = "plain, deterministic"
OURS: Final = "holdfast"
TASK: Final = "holdfast_bench.gpu.task"
SHARDS: Final = 8
"""Shards of a step, where a load is also measured with several; those of `SMALL` are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained, on which device, in so many shards or micro-batches a step.

    Attributes:
        steps: Steps that are timed.
    """

    load: str
    device: torch.device
    shards: int
    steps: int
    precision: str

    @property
    def warm(self) -> int:
        """Steps before them."""
        return max(2, self.steps // 2)


def plain(setup: Setup, *, deterministic: bool) -> Reading:
    """Train in a loop without holdfast."""
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    device, load = setup.device, LOADS[setup.load]
    torch.manual_seed(0)
    model = load.model().to(device)
    optimizer = load.optimizer(model.parameters())
    samples = pinned(load)
    meter = Meter(device, setup.warm, setup.steps)
    for step in range(setup.warm + setup.steps + 1):
        meter.at(step)
        for _ in range(setup.shards):
            batch = tuple(each.to(device, non_blocking=True) for each in samples)
            with torch.autocast(device.type, torch.bfloat16, enabled=setup.precision == "bf16"):
                loss = load.loss(model, batch)
            (loss / setup.shards).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return meter.reading


def holdfast(setup: Setup, forks: ForkServer) -> Reading:
    """Train with one worker of holdfast, forked by `forks`.

    Raises:
        HoldfastError: The run failed.
    """
    # What the plain loops have left is of no use to another process.
    gc.collect()
    torch.cuda.empty_cache()  # nothing, without a GPU
    with tempfile.TemporaryDirectory() as folder:
        reading = Path(folder) / "reading.json"
        params = {"load": setup.load, "warm": setup.warm, "steps": setup.steps}
        keys = {
            "task": f"{TASK}:main",
            "params": {**params, "reading": str(reading)},
            "batch": LOADS[setup.load].batch * setup.shards,
            "shards": setup.shards,
            "device": setup.device.type,
            "precision": setup.precision,
            "checkpoint": {"every_steps": 0},
            "loader": {"pin_memory": True},
        }
        with train(keys, LaunchOptions(forks=forks)):
            found: Reading = json.loads(reading.read_text(encoding="utf-8"))
            return found


def rows_of(setup: Setup, rounds: int, forks: ForkServer) -> list[dict[str, Any]]:
    """Measure every loop in each round; returns a row for each."""
    ways = {
        BASE: partial(plain, setup, deterministic=True),
        OURS: partial(holdfast, setup, forks),
    }
    if setup.shards == 1:
        ways = {"plain": partial(plain, setup, deterministic=False), **ways}
    readings = in_rounds(ways, rounds, f"gpu, {setup.load}", alternates=True)
    on_gpu = setup.device.type == "cuda"
    clock = "step_ms" if on_gpu else "host_ms"
    speeds = {way: [1 / each[clock] for each in found] for way, found in readings.items()}
    rows = []
    for way, found in readings.items():
        row: dict[str, Any] = {"load": setup.load, "way": way, "shards": setup.shards}
        row["of_plain"] = ratio(speeds[way], speeds[BASE])
        if on_gpu:
            row |= {key: spread([each[key] for each in found], 2) for key in ("step_ms", "host_ms")}
            row["peak_mb"] = round(max(each["peak_mb"] for each in found))
        rows.append(row)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="By default the GPU, if there is one."
    )
    parser.add_argument(
        "--loads",
        type=names("load", LOADS),
        metavar="NAME,…",
        help=f"Of {', '.join(LOADS)}; by default those that suit the device.",
    )
    parser.add_argument("--steps", type=count, default=20, help="Steps that are timed.")
    add_rounds(parser, 2)


def run(options: argparse.Namespace) -> Measured:
    """Measure each load with one shard, and those that fill the device with several.

    Raises:
        JobError: There is no GPU to measure.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise JobError("--device cuda: there is no GPU with CUDA here; leave the option out")
    # Read when cuBLAS is loaded; a deterministic product of matrices needs it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(1)  # as in a worker
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    absent = {}
    if device.type == "cpu":
        absent["a GPU"] = "tiny models were trained on a CPU, of which only the ratios are told"
        print("gpu: no GPU is used; tiny models are trained on the CPU", file=sys.stderr)
    loads = options.loads or ((*LARGE, *SMALL) if device.type == "cuda" else TINY)
    precision = "bf16" if device.type == "cuda" else "fp32"
    make = partial(Setup, device=device, precision=precision)
    few = max(2, options.steps // 6)
    setups = [make(load=load, shards=1, steps=options.steps) for load in loads]
    setups += [make(load=each, shards=SHARDS, steps=few) for each in loads if each not in SMALL]
    rows = list[dict[str, Any]]()
    with ForkServer(spawn(WORKER), [TASK]) as forks:
        for setup in setups:
            try:
                rows += rows_of(setup, options.rounds, forks)
            except (HoldfastError, RuntimeError) as error:  # such as too little memory
                absent[f"{setup.load}, {setup.shards} shards"] = str(error).splitlines()[0]
    return Measured(rounds=options.rounds, absent=absent, rows=rows)
