"""Figures of `bench balance` as PNG, each with its numbers as CSV.

throughput           systems compared with the bound, for every cluster and workload
plan-CLUSTER-…       shards and computing time of each worker over the steps of a dynamic run
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from holdfast_bench.unlike.step_log import Steps, plans_of

COLORS: Final = ("#999999", "#E69F00", "#56B4E9", "#0072B2", "#CC79A7", "#009E73", "#D55E00")
"""Okabe and Ito, "Color Universal Design": distinct for color-blind readers."""
LINES: Final = ("-", "--", "-.", ":")
"""Styles of the workers' lines, so that those with equal values are seen."""
DPI: Final = 150
_BOUND: Final = "bound"


def write_throughput(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `throughput.csv` and `throughput.png`.

    Args:
        output: The directory.
        rows: As `bench balance` prints them; those of systems that were left out are not drawn.

    Raises:
        OSError: A file cannot be written.
    """
    drawn = [row for row in rows if "samples_per_s" in row]
    flat = [
        {**row, "samples_per_s": row["samples_per_s"]["median"]}
        | {f"samples_per_s_{end}": row["samples_per_s"][end] for end in ("min", "max")}
        for row in drawn
    ]
    _write_csv(output / "throughput.csv", flat)
    if not drawn:
        return
    panels = list(dict.fromkeys((row["cluster"], row["mode"]) for row in drawn))
    systems = list(dict.fromkeys(row["system"] for row in drawn if row["system"] != _BOUND))
    size = (3 + 2 * len({row["workload"] for row in drawn}), 0.6 + 2.1 * len(panels))
    figure = Figure(figsize=size, layout="constrained")
    for axes, panel in zip(_column(figure, len(panels)), panels, strict=True):
        of_panel = [row for row in drawn if (row["cluster"], row["mode"]) == panel]
        _draw_bars(axes, of_panel, systems)
        axes.set_title(f"{panel[0].replace(',', ', ')}   ({panel[1]})", fontsize=10, loc="left")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(output / "throughput.png", dpi=DPI)


def _draw_bars(axes: Axes, rows: Sequence[Mapping[str, Any]], systems: Sequence[str]) -> None:
    """A group of bars for each workload: throughput in percent of the bound."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    width = 0.8 / len(systems)
    axes.axhline(100, color="black", linewidth=1, linestyle="--", label="bound: sum of speeds")
    for place, system in enumerate(systems):
        of_system = [row for row in rows if row["system"] == system]
        at = [
            workloads.index(row["workload"]) + (place - (len(systems) - 1) / 2) * width
            for row in of_system
        ]
        shares = [100 * row["efficiency"] for row in of_system]
        bars = axes.bar(at, shares, 0.9 * width, color=COLORS[place % len(COLORS)], label=system)
        texts = axes.bar_label(bars, [f"{share:.0f}" for share in shares], fontsize=8, padding=2)
        for text in texts:  # readable on the line of the bound
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set(ylabel="samples/s, % of bound", ylim=(0, 1.15 * max(100, *axes.get_ylim()[1:])))
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_ticks([0, 25, 50, 75, 100])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def write_plan(output: Path, label: str, steps: Steps) -> None:
    """Write `plan-LABEL.csv` and `plan-LABEL.png` of one run.

    Args:
        output: The directory.
        label: What ran, for people.
        steps: Of each worker.

    Raises:
        OSError: A file cannot be written.
    """
    name = "plan-" + re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-")
    entries = [
        {"step": number, "worker": rank, "shards": step.shards, "busy_s": round(step.busy_s, 6)}
        for rank, of_worker in enumerate(steps)
        for number, step in enumerate(of_worker, 1)
    ]
    _write_csv(output / f"{name}.csv", entries)
    plans = plans_of(steps)
    numbers = range(1, len(plans) + 1)
    changes = [number for number, (now, then) in enumerate(pairwise(plans), 2) if now != then]
    figure = Figure(figsize=(8, 5), layout="constrained")
    figure.suptitle(f"balance: dynamic, {label}", fontsize=11)
    shards, busy = _column(figure, 2, share_x=True)
    for rank, of_worker in enumerate(steps):
        style: dict[str, Any] = {
            "color": COLORS[1:][rank % (len(COLORS) - 1)],
            "linestyle": LINES[rank % len(LINES)],
            "linewidth": 2,
            "label": f"worker {rank}",
        }
        shards.step(numbers, [plan[rank] for plan in plans], where="mid", **style)
        times_ms = [1e3 * step.busy_s for step in of_worker[: len(plans)]]
        busy.plot(numbers, times_ms, marker="o", markersize=3, **style)
    for axes in (shards, busy):
        for number, change in enumerate(changes):
            axes.axvline(
                change - 0.5,
                color="black",
                linewidth=0.8,
                linestyle=":",
                label="new plan" if number == 0 else None,
            )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    shards.set(ylabel="shards per step")
    busy.set(ylabel="computing time per step, ms", xlabel="step")
    shards.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(output / f"{name}.png", dpi=DPI)


def _column(figure: Figure, count: int, *, share_x: bool = False) -> Sequence[Axes]:
    return list(figure.subplots(count, 1, squeeze=False, sharex=share_x)[:, 0])


def _write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    found = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]) if found else [])
        writer.writeheader()
        writer.writerows(found)
