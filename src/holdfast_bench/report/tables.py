"""Tables: results that have no figure, or more numbers than a figure shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_bench.report.results import Results, Row, values

Columns = Mapping[str, tuple[str, str]]
"""Key and format of each column, by its name."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a benchmark.

    Attributes:
        heading: The section that it is in.
        about: What to know to read it.
        source: The benchmark.
        columns: Its columns.
        rows: Its rows; a column is empty where the key is missing.
    """

    heading: str
    about: str
    source: str
    columns: Columns
    rows: list[Row]

    @property
    def cells(self) -> Iterator[list[str]]:
        """The rows in words."""
        for row in self.rows:
            yield [_cell(row.get(key), form) for key, form in self.columns.values()]


def tables(results: Results) -> list[Table]:
    """The tables that have rows."""
    made = [
        Table(heading, about, source, columns, results.rows(source, **wanted))
        for heading, about, source, wanted, columns in _TABLES
    ]
    made.insert(1, Table(*_REAL, _of_real_workers(results)))
    return [table for table in made if table.rows]


def _of_real_workers(results: Results) -> list[Row]:
    """Workers that compute, as a share of as many processes that do not communicate."""
    return [
        {**row, "speedup": row["workers"] * row["of_independent"]}
        for row in results.rows("scaling")
        if row.get("workers", 1) > 1 and (row["way"] == "DDP" or row["way"].endswith("shards"))
    ]


def _cell(value: Any, form: str) -> str:
    """A value in words: a median with its lowest and highest, or ✓ and ✕."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "✓" if value else "✕"
    if isinstance(value, dict):
        middle = _cell(value["median"], form)
        low, high = (_cell(value[end], form) for end in ("min", "max"))
        return f"{middle} [{low} to {high}]" if len(values(value)) > 1 else middle
    return form.format(value).replace("%", " %") if form.endswith("%}") else form.format(value)


_SHARE: Final = "{:.1%}"
_SCALING: Final = "Ideal and actual scaling"
_SPEEDUP: Final = {"speedup": ("speedup", "{:.2f} ×")}
_REAL: Final = (
    _SCALING,
    "Workers that compute, next to the ideal: as many processes that do not communicate.",
    "scaling",
    {
        "workload": ("workload", "{}"), "system": ("way", "{}"), "workers": ("workers", "{}"),
        "samples/s": ("samples_per_s", "{:,.0f}"), **_SPEEDUP, "ideal": ("workers", "{} ×"),
        "efficiency": ("of_independent", _SHARE),
    },
)  # fmt: skip
_TABLES: Final[tuple[tuple[str, str, str, Row, Columns], ...]] = (
    (
        _SCALING,
        "Emulated hosts, whose workers sleep for as long as a step computes.",
        "emulate",
        {"measure": "emulated"},
        {
            "scaling": ("scaling", "{}"), "hosts": ("hosts", "{}"), "step": ("step_s", "{:.3g} s"),
            **_SPEEDUP, "ideal": ("ideal", "{} ×"), "efficiency": ("efficiency", _SHARE),
            "communication": ("sync_share", _SHARE),
            "error of prediction": ("error_percent", "{:+.1f} %"),
        },
    ),
    (
        "Many agents and several hosts",
        "Agents that share the cores of their coordinator: its answers, and time to train again.",
        "control",
        {},
        {
            "agents": ("agents", "{:,}"), "heartbeat": ("heartbeat_s", "{:g} s"),
            "answer, median": ("delay_p50_ms", "{:,.1f} ms"),
            "answer, 99 %": ("delay_p99_ms", "{:,.0f} ms"),
            "coordinator, of a core": ("coordinator_cpu", _SHARE),
            "a status": ("cpu_per_status_ms", "{:.2f} ms"),
            "worker exits": ("worker_exits_s", "{:.1f} s"),
            "host lost": ("host_lost_s", "{:.1f} s"),
        },
    ),
    (
        "Many agents and several hosts",
        "A coordinator that is killed: time until its successor works.",
        "coordinator",
        {},
        {"workload": ("workload", "{}"), "successor works after": ("back_s", "{:.3g} s")},
    ),
    (
        "Many agents and several hosts",
        "Network namespaces of this machine: time from a failure to the next step of all.",
        "hosts",
        {"measure": "recovery"},
        {
            "hosts": ("hosts", "{}"), "workers on each": ("workers", "{}"),
            "workload": ("what", "{}"), "failure": ("system", "{}"), "time": ("ms", "{:,.0f} ms"),
        },
    ),
    (
        "Many agents and several hosts",
        "Hosts and workers that change: time between two steps, or from a host's loss to the next.",
        "sizes",
        {},
        {
            "workload": ("workload", "{}"), "change": ("change", "{}"),
            "time": ("seconds", "{:.3g} s"),
        },
    ),
    (
        "Failure scenarios",
        "A scenario passes if the weights equal those of a run without a failure, too.",
        "scenarios",
        {},
        {
            name: (name.lower(), "{}")
            for name in ("Scenario", "Recovery", "Expected", "Happened", "Passed")
        },
    ),
)  # fmt: skip
