"""Figure of a dynamic run of `bench balance`: shards and computing time of each worker over the
steps, as `plan-CLUSTER-….png` with its numbers as CSV.
"""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from holdfast_bench.unlike.step_log import Steps, plans_of

COLORS: Final = ("#999999", "#E69F00", "#56B4E9", "#0072B2", "#CC79A7", "#009E73", "#D55E00")
"""Okabe and Ito, "Color Universal Design": distinct for color-blind readers."""
LINES: Final = ("-", "--", "-.", ":")
"""Styles of the workers' lines, so that those with equal values are seen."""
DPI: Final = 150


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
    with (output / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(entries[0]))
        writer.writeheader()
        writer.writerows(entries)
    plans = plans_of(steps)
    numbers = range(1, len(plans) + 1)
    changes = [number for number, (now, then) in enumerate(pairwise(plans), 2) if now != then]
    figure = Figure(figsize=(8, 5), layout="constrained")
    figure.suptitle(f"balance: dynamic, {label}", fontsize=11)
    shards, busy = figure.subplots(2, 1, sharex=True)
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
