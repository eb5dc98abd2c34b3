"""Measure: run one benchmark in a process of its own, which reads its options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from holdfast.errors import BenchmarkFailed
from holdfast.launch.child import KILL_TIMEOUT_S
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
    command = [*_COMMAND, name, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate()
        except KeyboardInterrupt:
            process.wait(KILL_TIMEOUT_S)  # it got the signal too, and ends what it has started
            raise
    if process.returncode != 0:
        raise BenchmarkFailed(name, process.returncode)
    printed = json.loads(output)
    return Result(
        benchmark=name,
        options=tuple(options),
        conditions=watch.conditions(),
        **printed,
    )


def show_help(name: str) -> None:
    """Print what a benchmark measures, and its options."""
    subprocess.run([*_COMMAND, name, "--help"], check=True)
