"""Measure: run one benchmark in a process of its own, which reads its options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from holdfast.errors import BenchmarkFailed
from holdfast_bench.results.conditions import Stopwatch
from holdfast_bench.results.result import Result

_COMMAND: Final = (sys.executable, "-m", "holdfast_bench.run")


def measure(name: str, options: Sequence[str]) -> Result:
    """Run `holdfast_bench.NAME`; its progress goes to standard error.

    Args:
        name: Of the benchmark.
        options: Its options.

    Raises:
        BenchmarkFailed: It ended without a result.
    """
    watch = Stopwatch()
    done = subprocess.run(
        [*_COMMAND, name, *options], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkFailed(name, done.returncode)
    printed = json.loads(done.stdout)
    return Result(
        benchmark=name,
        options=tuple(options),
        conditions=watch.conditions(),
        **printed,
    )


def show_help(name: str) -> None:
    """Print what a benchmark measures, and its options."""
    subprocess.run([*_COMMAND, name, "--help"], check=True)
