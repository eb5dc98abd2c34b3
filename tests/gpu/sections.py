"""Runs the sections of GPU checks, each within its own time; those that can share a GPU at the same
time.

After each section its outcomes are appended to `gpu-checks.json`, so that a call that is cut off
still counts. On a CPU the sizes are tiny, and what needs CUDA is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast_bench.results.conditions import Stopwatch
from holdfast_bench.results.result import Result

HERE = Path(__file__).parent
STORED = HERE.parents[1] / "docs" / "benchmarks"
NAME = "gpu-checks"
PATIENCE = 10
"""Factor on limits without a GPU, where other tests may run at the same time."""
GRACE_S = 15
"""Time in which pytest ends what it has started."""


@dataclass(frozen=True)
class Section:
    """Tests that are run together.

    Attributes:
        file: The tests.
        limit_s: Longest time on a GPU.
        processes: Number of tests that run at a time; 0 for those that need the GPU
            to themselves.
        by_name: True if they run only if they are asked for.
    """

    file: str
    limit_s: int
    processes: int
    by_name: bool = False


SECTIONS = {
    1: Section("test_gpu_memory.py", 40, 0),
    2: Section("test_gpu_trainer.py", 100, 2),
    3: Section("test_gpu_steady.py", 60, 4),
    4: Section("test_gpu_weights.py", 90, 4),
    5: Section("test_gpu_strict.py", 60, 2),
    6: Section("test_gpu_kills.py", 100, 4),
    7: Section("test_gpu_speed.py", 150, 0),
    8: Section("test_gpu_nccl.py", 60, 4, by_name=True),
    9: Section("test_gpu_qlora.py", 240, 0, by_name=True),
}


def run(number: int, device: str, folder: Path) -> list[dict[str, Any]]:
    """Run a section; returns a row for it, and one for each of its tests."""
    section = SECTIONS[number]
    outcomes = folder / f"section-{number}.jsonl"
    outcomes.touch()
    processes = section.processes if device == "cuda" else 0
    limit_s = section.limit_s if device == "cuda" else PATIENCE * section.limit_s
    command = [sys.executable, "-m", "pytest", str(HERE / section.file), "-m", "not soak"]
    command += ["-n", str(processes), "--tb", "short", "-W", "default", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "PYTEST_PLUGINS": "outcomes",
        "HOLDFAST_CHECKED_DEVICE": device,
        "HOLDFAST_CHECKED_OUTCOMES": str(outcomes),
    }
    began = time.monotonic()
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            outcome = "passed" if process.wait(limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = f"cut off after {limit_s} s"
            end(process)
    seconds = round(time.monotonic() - began, 1)
    whole = {"section": number, "check": section.file, "outcome": outcome, "seconds": seconds}
    rows = map(json.loads, outcomes.read_text(encoding="utf-8").splitlines())
    return [whole, *({"section": number, **row} for row in rows)]


def run_all(numbers: Sequence[int], device: str, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Run sections, on a GPU at the same time as far as they can share it; yields their rows."""
    together = [n for n in numbers if device == "cuda" and SECTIONS[n].processes]
    for number in numbers:
        print(f"section {number}, at most {SECTIONS[number].limit_s} s", flush=True)
    with ThreadPoolExecutor(len(together) or 1) as pool:
        yield from pool.map(lambda number: run(number, device, folder), together)
    yield from (run(number, device, folder) for number in numbers if number not in together)


def end(process: subprocess.Popen[bytes]) -> None:
    """End pytest and what it has started."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """Run sections and store their outcomes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--section", type=int, choices=SECTIONS, action="append")
    parser.add_argument("--output", type=Path, help="By default docs/benchmarks with a GPU.")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("tests/gpu/run: no GPU with CUDA here; --device cpu runs tiny sizes", file=sys.stderr)
        return 1
    output = options.output or (STORED if options.device == "cuda" else None)
    if output is not None:
        os.environ["HOLDFAST_CHECKED_OUTPUT"] = str(output.resolve())
    chosen = options.section or [n for n, each in SECTIONS.items() if not each.by_name]
    watch = Stopwatch()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for found_rows in run_all(chosen, options.device, Path(folder)):
            rows += found_rows
            found = Result(
                benchmark=NAME,
                options=tuple(sys.argv[1:]),
                conditions=watch.conditions(),
                rows=tuple(rows),
            )
            if output is not None:
                found.save(output)
    wholes = [row for row in rows if row["check"] == SECTIONS[row["section"]].file]
    for row in wholes:
        print(f"section {row['section']}: {row['outcome']}, {row['seconds']} s")
    return int(any(row["outcome"] != "passed" for row in wholes))


if __name__ == "__main__":
    sys.exit(main())
