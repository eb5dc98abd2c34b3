"""Figure: how fast all-reduces are."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import Sentence, number, say
from holdfast_bench.report.drawing import area, canvas, foot, keys, log_axis, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row
from holdfast_bench.report.theme import Tokens

TREE: Final = "tree"
FASTEST: Final = "fastest"
"""The algorithm of the job key `collective` that took least, apart from the tree."""
PEERS: Final = ("gloo", "mpi")
LOOKS: Final = {
    TREE: ("exact tree", "holdfast"),
    FASTEST: ("fastest algorithm", "restart"),
    "gloo": ("gloo", "torchrun"),
    "mpi": ("Open MPI", "torchft"),
}
LARGE: Final = 64 << 20
SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
"""Sizes with a label."""
PANEL: Final = 180


def figure(results: Results) -> Figure | None:
    """From `collectives.json`: workers that share memory."""
    by_workers: dict[int, dict[int, dict[str, Row]]] = {}
    for row in results.rows("collectives"):
        if row["transport"] == "memory":
            of_size = by_workers.setdefault(row["workers"], {}).setdefault(row["size_bytes"], {})
            of_size[row["system"]] = row
    panels = {workers: _lines(sizes) for workers, sizes in by_workers.items()}
    if not panels or any({TREE, FASTEST, "gloo"} - lines.keys() for lines in panels.values()):
        return None
    return Figure(
        name="collectives",
        question="How fast are all-reduces on one host?",
        answer=_answer(by_workers),
        caption="Workers share memory, but gloo sends over loopback. Bus bandwidth, as in "
        "nccl-tests: 2 (n - 1)/n of the size over the time. Every sum was compared with the right "
        "one, element by element.",
        source="collectives",
        command="holdfast bench collectives --workers 2,4",
        draw=partial(_draw, panels),
    )


def _lines(sizes: dict[int, dict[str, Row]]) -> dict[str, list[tuple[int, float]]]:
    """Bus bandwidth by size, for each line."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for size, rows in sorted(sizes.items()):
        speeds = {system: row["busbw_gb_per_s"] for system, row in rows.items()}
        own = [speed for system, speed in speeds.items() if system not in (TREE, *PEERS)]
        if own:
            lines.setdefault(FASTEST, []).append((size, max(own)))
        for system in (TREE, *PEERS):
            if system in speeds:
                lines.setdefault(system, []).append((size, speeds[system]))
    return lines


def _answer(by_workers: dict[int, dict[int, dict[str, Row]]]) -> Sentence:
    parts = []
    numbers = {}
    for workers, sizes in by_workers.items():
        size = min(sizes, key=lambda each: abs(each - LARGE))
        rows = sizes[size]
        parts.append(
            f"{workers} workers reduce {size >> 20} MB {{tree_{workers}}} as fast as gloo with the "
            f"exact tree."
        )
        numbers[f"tree_{workers}"] = number(
            "collectives", rows[TREE]["speed_of_gloo"], form="{:.3g} ×"
        )
    return say(" ".join(parts), **numbers)


def _draw(panels: dict[int, dict[str, list[tuple[int, float]]]], t: Tokens) -> Canvas:
    fig = canvas(PANEL + 128)
    drawn = {name for lines in panels.values() for name in lines}
    keys(fig, t, 44, 18, [(look[1], look[0], None) for n, look in LOOKS.items() if n in drawn])
    width = 300 if len(panels) > 1 else 656
    for place, (workers, lines) in enumerate(panels.items()):
        left = 44 + 360 * place
        title(fig, left, 56, f"{workers} workers: bus bandwidth, GB/s", t)
        ax = area(fig, left, 68, width, PANEL, xscale="log", yscale="log")
        for name, (_, color) in LOOKS.items():
            points = lines.get(name, [])
            style: dict[str, Any] = {"color": t[color], "linewidth": pt(2), "marker": "o"}
            ax.plot(*zip(*points, strict=True), markersize=pt(5), **style) if points else None
        sizes = [size for size in SIZES if size in {each for each, _ in lines[TREE]}]
        log_axis(ax.xaxis, sizes, [_in_words(each) for each in sizes])
        speeds = [speed for points in lines.values() for _, speed in points]
        ticks = [10.0**power for power in range(-3, 3) if min(speeds) <= 10.0**power <= max(speeds)]
        log_axis(ax.yaxis, ticks, [f"{each:g}" for each in ticks])
    foot(fig, 44, "Logarithmic axes: size of the vector, and bus bandwidth.", t)
    return fig


def _in_words(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"
