"""From the command to the first step: holdfast compared with a plain PyTorch process."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS
from holdfast_bench.arguments import add_rounds
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.results.result import Measured
from holdfast_bench.rounds import in_rounds
from holdfast_bench.workloads import Small

RUN_TIMEOUT_S = 300.0


def plain() -> float:
    """Seconds until a plain process has committed its first step."""
    script = [sys.executable, "-m", "holdfast_bench.peers.peer_script", "--workload", "small"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*script, "--steps", "1", "--dir", folder]
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
        first = next(json_lines.read(Path(folder) / "rank-0.jsonl"))
    return float(first["ended"]) - began


def holdfast(workers: int) -> float:
    """Seconds until `holdfast train` has committed its first step."""
    job = {
        "task": "holdfast_bench.workloads:BenchTask",
        "params": {"workload": "small", "steps": 1},
        "batch": Small.batch_size * workers,
        "workers": workers,
        "shards": workers,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.yaml"
        path.write_text(yaml.safe_dump(job))
        command = [sys.executable, "-m", "holdfast", "train", str(path), "--run", f"{folder}/run"]
        began = time.time()
        subprocess.run(command, check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
        first = next(json_lines.read(Path(folder) / "run" / METRICS))
    return float(first["time_unix_s"]) - began


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_rounds(parser, 7)


def run(options: argparse.Namespace) -> Measured:
    """Start every way once a round."""
    ways: dict[str, Callable[[], float]] = {
        "plain process": plain,
        "holdfast, 1 worker": partial(holdfast, 1),
        "holdfast, 2 workers": partial(holdfast, 2),
    }
    for start in ways.values():  # warm-up: compiles modules and fills the page cache
        start()
    seconds = in_rounds(ways, options.rounds, "startup")
    rows = [
        {
            "way": way,
            "seconds": spread(measured, 2),
            "of_plain": ratio(measured, seconds["plain process"]),
        }
        for way, measured in seconds.items()
    ]
    return Measured(rounds=options.rounds, rows=rows)
