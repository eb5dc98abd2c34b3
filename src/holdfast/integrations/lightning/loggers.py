"""Loggers of a Trainer in a run: one worker writes, and another one may take over."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


def name(loggers: list[Any], version: str) -> None:
    """Give loggers without a version one that is the same on all workers: by themselves, they take
    the next free number.
    """
    for logger in loggers:
        if isinstance(logger, CSVLogger | TensorBoardLogger) and logger._version is None:
            logger._version = version


def take_over(loggers: list[Any], steps: int) -> None:
    """Have loggers of this worker continue after so many steps: a new one would remove the lines
    that another worker has written.
    """
    for logger in loggers:
        if isinstance(logger, CSVLogger) and logger._experiment is None:
            _continue(logger, steps)


def _continue(logger: Any, steps: int) -> None:
    path = Path(logger.log_dir) / "metrics.csv"
    if not path.exists():
        return
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        lines = [line for line in reader if int(line["step"]) < steps]
    writer = logger.experiment  # it removes the file
    writer.metrics_keys = list(reader.fieldnames or [])
    with path.open("w", newline="") as file:
        kept = csv.DictWriter(file, writer.metrics_keys)
        kept.writeheader()
        kept.writerows(lines)
