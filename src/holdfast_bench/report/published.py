"""Published: figures that other systems' reports name, on other machines and models.

They are named as published elsewhere, never drawn on measured axes, and no ratio is formed with
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from holdfast_bench.report.results import Results, Row, median

Same = Literal["same", "other", "not measurable"]

CHECKPOINT_PERCENT: Final[Mapping[int, int]] = {25: 6, 10: 12, 5: 28}
"""Overhead by the steps from one checkpoint to the next."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A published figure.

    Attributes:
        quantity: What it is.
        published: The figure.
        same: True if ours is measured on the same thing.
        why: What differs.
        ours: Our figure; empty if it was not measured.
    """

    quantity: str
    published: str
    same: Same
    why: str
    ours: Callable[[Results], str]


def _joined(values: list[str]) -> str:
    return " · ".join(values)


def _recovery(results: Results) -> str:
    rows = results.rows("recovery", fault="kill", way="holdfast")
    return _joined([f"{median(row['committed_s']):.3g} s ({row['workload']})" for row in rows])


def _checkpoint(results: Results) -> str:
    rows = results.rows("checkpoint", measure="saving", system="holdfast")
    found = {
        row["every"]: median(row["overhead_pct"])
        for row in reversed(rows)
        if row.get("overhead_pct")
    }
    return _joined([f"{found[every]:.3g} %" for every in CHECKPOINT_PERCENT if every in found])


def _speedup(results: Results) -> str:
    rows = results.rows("emulate", measure="emulated", scaling="weak")
    return _joined([f"{row['speedup']:.2f}" for row in rows if row["hosts"] in (2, 4)])


def _heartbeat(results: Results) -> str:
    rows = sorted(results.rows("heartbeat", agents=1), key=lambda row: float(row["interval_s"]))
    traffic = _joined([f"{row['bytes_per_s'] / 1000:.2f}" for row in rows])
    found = _joined([f"{median(row['detection_s']):.3g}" for row in rows])
    return f"{traffic} KB/s, detected in {found} s" if rows else ""


def _qlora(results: Results) -> str:
    rows: list[Row] = results.rows("qlora", measure="hosts")
    rates = _joined([f"{median(row['samples_per_s']):.3g}" for row in rows])
    cost = _joined([f"${row['cost_per_1000']:.4f}" for row in rows])
    return f"{rates} samples/s, {cost} per 1,000" if rows else ""


def _balance(results: Results) -> str:
    gains = [
        row["gain_over_even"] for row in results.rows("balance") if row.get("system") == "dynamic"
    ]
    return _joined([f"{100 * gain:+.0f} %" for gain in gains])


def _none(_: Results) -> str:
    return ""


REFERENCES: Final = (
    Reference(
        "Recovery", "18.0 s = 12.5 detect + 3.0 restart + 2.0 init + 0.5 load",
        "other", "other model and hosts", _recovery,
    ),
    Reference(
        "Checkpoint every 25, 10, 5 steps", "6 · 12 · 28 %", "other", "other model and disk",
        _checkpoint,
    ),
    Reference("Speedup on 2, 4", "1.85 · 3.4", "other", "emulated here", _speedup),
    Reference(
        "Heartbeat every 0.5, 1, 2, 5 s",
        "2.4 · 1.2 · 0.6 · 0.24 KB/s, detected in 15.5 · 16 · 17 · 20 s",
        "same", "of one agent", _heartbeat,
    ),
    Reference(
        "QLoRA on 1, 2, 4 nodes",
        "1.46 · 2.80 · 5.50 samples/s, efficiency 96 · 94 %, $0.114 · 0.060 · 0.030 per 1,000 (the "
        "last two forget the nodes; with all nodes $0.114 · 0.119 · 0.121)",
        "other", "other network and hosts", _qlora,
    ),
    Reference("Balance", "+30 to 50 %", "other", "other devices", _balance),
    Reference(
        "2, 4, 8, 16 GPUs", "1,000 · 1,800 · 3,400 · 6,000 samples/s", "not measurable",
        "needs as many GPUs", _none,
    ),
)  # fmt: skip
