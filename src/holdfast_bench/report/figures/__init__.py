"""Figures: a module for each, with a function `figure` that returns None without its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast_bench.report.figure import Figure
from holdfast_bench.report.figures import (
    balance,
    checkpoint,
    collectives,
    compression,
    cost,
    heartbeat,
    loss,
    phases,
    recovery,
    scaling,
    step,
    timeline,
)
from holdfast_bench.report.results import Results

FIGURES: Final[dict[str, Callable[[Results], Figure | None]]] = {
    "recovery": recovery.figure,
    "phases": phases.figure,
    "timeline": timeline.figure,
    "loss": loss.figure,
    "checkpoint": checkpoint.figure,
    "step": step.figure,
    "scaling": scaling.figure,
    "heartbeat": heartbeat.figure,
    "balance": balance.figure,
    "collectives": collectives.figure,
    "compression": compression.figure,
    "cost": cost.figure,
}
"""In the order of the report."""
