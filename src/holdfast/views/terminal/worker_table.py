"""Worker table: how each worker is doing, the worst first if there are more than lines."""

from __future__ import annotations

import re
from typing import Final

from rich.text import Text

from holdfast.record.units import MISSING
from holdfast.record.views.worker_rows import CPU, RUNNING, WorkerNow, worst_first
from holdfast.views.terminal import lines
from holdfast.views.terminal.lines import Column, Look

METER: Final = 8
"""The width of the bar of a worker's utilization."""
MEMORY: Final = 7
_STATES: Final = {
    RUNNING: "green", "starting": "", "standby": "yellow", "failed": "bold red",
    "hung": "bold red", "lost": "bold red", "ended": "dim",
}  # fmt: skip
_GB: Final = 1e9
_SHORTER: Final = re.compile(r"^(NVIDIA )?(GeForce )?")
"""Words that names of GPUs begin with."""


def table(workers: list[WorkerNow], width: int, look: Look, rows: int) -> list[Text]:
    """The workers that fit, and a header; of more than that, the worst."""
    if not workers:
        return [Text("RANK  workers appear once they have started", "dim")]
    shown = workers if len(workers) <= rows else worst_first(workers)[:rows]
    has_gpu = any(each.device != CPU for each in workers)
    columns = (
        Column(title="RANK", width=4, gap=0, importance=9),
        Column(title="HOST", width=7, max_width=24, is_left=True, importance=4),
        Column(title="DEVICE", width=8, max_width=24, is_left=True, importance=2),
        Column(title="STATE", width=8, is_left=True, importance=8),
        Column(title="SHARDS", width=6, gap=0, importance=5),
        Column(title="GPU" if has_gpu else CPU, width=METER + 6, is_left=True, importance=7),
        Column(title="MEM GB", width=MEMORY, gap=1, importance=3),
        Column(title="TEMP", width=4, gap=1, importance=1),
        Column(title="DATA", width=5, gap=1, importance=6),
        Column(title="WAIT", width=5, gap=1, importance=6),
    )
    return lines.fitted(columns, [_cells(each, look) for each in shown], width)


def _cells(worker: WorkerNow, look: Look) -> list[Text]:
    used = worker.used
    bar = Text(MISSING) if used is None else lines.meter(used, METER, look, "green")
    heat = worker.temperature_c
    return [
        Text(str(worker.rank)),
        Text(worker.host or MISSING),
        Text(_SHORTER.sub("", worker.device)),
        Text(worker.state, _STATES[worker.state]),
        Text(MISSING if worker.shards is None else f"{worker.shards:.3g}"),
        bar.append("" if used is None else f" {100 * used:3.0f} %"),
        Text(_memory(worker)),
        Text(MISSING if heat is None else f"{heat:.0f} C"),
        Text(_share(worker.data)),
        Text(_share(worker.wait)),
    ]


def _memory(worker: WorkerNow) -> str:
    held = worker.memory_bytes
    total = worker.memory_total_bytes
    if held is None:
        return MISSING
    short = f"{held / _GB:.{0 if held >= 9.95 * _GB else 1}f}"
    of = f"/{total / _GB:.0f}" if total else ""
    return f"{short}{of}" if len(short + of) <= MEMORY else short


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.0f} %"
