"""Published: figures that other systems' reports name, on other machines and models.

They are named as published elsewhere, never drawn on measured axes, and no ratio is formed with
them. Each has a row of its own, with ours in the same unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_bench.report.results import Results, Row, live_phases, median, values

CHECKPOINT_PERCENT: Final[Mapping[int, int]] = {25: 6, 10: 12, 5: 28}
"""Overhead by the steps from one checkpoint to the next."""
RECOVERY_S: Final = {"detect": 12.5, "restart": 3.0, "init": 2.0, "state": 0.5}
"""Phases of 18 s."""
SPEEDUP: Final = {2: "1.85 ×", 4: "3.4 ×"}
HEARTBEAT: Final = {0.5: (2.4, 15.5), 1.0: (1.2, 16), 2.0: (0.6, 17), 5.0: (0.24, 20)}
"""KB/s and seconds until a lost host is detected, by the interval in seconds."""
QLORA_SAMPLES_PER_S: Final = {1: "1.46", 2: "2.80", 4: "5.50"}
QLORA_EFFICIENCY: Final = {2: "96 %", 4: "94 %"}
QLORA_COST: Final = {
    1: "$0.114", 2: "$0.060; $0.119 with both nodes", 4: "$0.030; $0.121 with all four",
}  # fmt: skip
"""Of 1,000 samples; several nodes are paid as one."""
GPUS: Final = {2: "1,000", 4: "1,800", 8: "3,400", 16: "6,000"}
BALANCE: Final = {"lowest": "+30 %", "highest": "+50 %"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A published figure.

    Attributes:
        quantity: What it is.
        published: The figure.
        ours: Ours in the same unit; empty if it was not measured.
        differs: What differs.
    """

    quantity: str
    published: str
    ours: str
    differs: str


def references(results: Results) -> list[Reference]:
    """All published figures, with ours."""
    makers = (_recovery, _checkpoint, _speedup, _heartbeat, _qlora, _balance, _gpus)
    return [each for make in makers for each in make(results)]


def _recovery(results: Results) -> Iterator[Reference]:
    rows = results.rows("recovery", fault="kill", way="holdfast")[:1]
    whole = "".join(f"{median(row['committed_s']):.3g} s" for row in rows)
    differs = "other · model and hosts; ours live, not from a checkpoint"
    yield Reference("Recovery", "18.0 s", whole, differs)
    phases = live_phases(rows[0]) if rows else {}
    names = ("to detect", "to restart", "to initialize", "to load the state")
    for name, (phase, published) in zip(names, RECOVERY_S.items(), strict=True):
        ours = f"{phases[phase]:.3g} s" if phase in phases else ""
        yield Reference(f"Recovery: {name}", f"{published:.1f} s", ours, differs)


def _checkpoint(results: Results) -> Iterator[Reference]:
    rows = results.rows("checkpoint", measure="saving", system="holdfast")
    cells = {row["every"]: row["overhead_pct"] for row in reversed(rows) if row.get("overhead_pct")}
    for every, published in CHECKPOINT_PERCENT.items():
        ours = _shown(cells.get(every), "{:.3g} %")
        name = f"Overhead of a checkpoint every {every} steps"
        yield Reference(name, f"{published} %", ours, "other · model and disk")


def _speedup(results: Results) -> Iterator[Reference]:
    rows = results.rows("emulate", measure="emulated", scaling="weak")
    ours = {row["hosts"]: f"{row['speedup']:.2f} ×" for row in rows}
    for hosts, published in SPEEDUP.items():
        differs = "other · ours emulated"
        yield Reference(f"Speedup on {hosts} hosts", published, ours.get(hosts, ""), differs)


def _heartbeat(results: Results) -> Iterator[Reference]:
    rows = {row["interval_s"]: row for row in results.rows("heartbeat", agents=1)}
    for interval_s, (traffic, detected) in HEARTBEAT.items():
        every = f"with a heartbeat every {interval_s:g} s"
        row = rows.get(interval_s)
        ours = f"{row['bytes_per_s'] / 1000:.2f} KB/s" if row else ""
        yield Reference(f"Traffic {every}", f"{traffic:g} KB/s", ours, "same · of one agent")
        ours = _shown(row["detection_s"], "{:.3g} s") if row else ""
        differs = "same · of one agent; ours times out after two intervals"
        yield Reference(f"Detection {every}", f"{detected:g} s", ours, differs)


def _qlora(results: Results) -> Iterator[Reference]:
    rows: dict[int, Row] = {row["hosts"]: row for row in results.rows("qlora", measure="hosts")}
    for quantity, published, key, form in (
        ("samples per second", QLORA_SAMPLES_PER_S, "samples_per_s", "{:.3g}"),
        ("efficiency", QLORA_EFFICIENCY, "efficiency", "{:.1%}"),
        ("cost of 1,000 samples", QLORA_COST, "cost_per_1000", "${:.4f}"),
    ):
        for hosts, figure in published.items():
            row = rows.get(hosts, {})
            ours = form.format(median(row[key])).replace("%", " %") if row.get(key) else ""
            ours += f" ({row['kind']})" if ours else ""
            name = f"QLoRA on {hosts} {'node' if hosts == 1 else 'nodes'}: {quantity}"
            yield Reference(name, figure, ours, "other · model, network and hosts")


def _balance(results: Results) -> Iterator[Reference]:
    rows = [row for row in results.rows("balance") if row.get("system") == "dynamic"]
    rows.sort(key=lambda row: float(row["gain_over_even"]))
    for place, (name, published) in enumerate(BALANCE.items()):
        ours = ""
        if rows:
            row = rows[-place]
            ours = f"{100 * row['gain_over_even']:+.0f} %{_once(row['samples_per_s'])}"
        yield Reference(f"Gain of balance, {name}", published, ours, "other · devices emulated")


def _gpus(_: Results) -> Iterator[Reference]:
    for count, published in GPUS.items():
        differs = "not measurable · needs as many GPUs"
        yield Reference(f"Throughput of {count} GPUs", f"{published} samples/s", "", differs)


def _shown(cell: Any, form: str) -> str:
    """A cell's median; empty without one."""
    return "" if cell is None else form.format(median(cell)) + _once(cell)


def _once(cell: Any) -> str:
    return " (measured once)" if len(values(cell)) < 2 else ""
