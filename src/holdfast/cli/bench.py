"""`holdfast bench`: measure this machine with holdfast on it."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from typing import Annotated

import typer


class Benchmark(StrEnum):
    """The benchmarks there are; each is a module of `holdfast.bench`."""

    WAKE = "wake"


def bench(
    name: Annotated[Benchmark, typer.Argument(help="wake: blocked workers leave their waits.")],
    workers: Annotated[int, typer.Option(min=1, max=64)] = 2,
    rounds: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
) -> None:
    """Run a benchmark; prints one JSON object."""
    command = [sys.executable, "-m", f"holdfast.bench.{name}"]
    options = ["--workers", str(workers), "--rounds", str(rounds)]
    raise typer.Exit(subprocess.run([*command, *options], check=False).returncode)
