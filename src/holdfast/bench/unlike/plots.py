"""stub"""
from pathlib import Path
from typing import Any
def write_plan(output: Path, label: str, steps: Any) -> None:
    """."""
def write_throughput(output: Path, rows: Any) -> None:
    """."""
