"""Figure: how long it takes until training continues."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report import drawing
from holdfast_bench.report.cited import Sentence, number, say, seconds
from holdfast_bench.report.drawing import area, canvas, dot, foot, horizontal, pt, row_text, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row, bounds, median
from holdfast_bench.report.theme import Tokens, color_of

STATES = {"small": "0.8 MB of state", "large": "302 MB of state"}


def figure(results: Results) -> Figure | None:
    """From `recovery.json`: kills of one of two workers, on up to two workloads."""
    rows = [row for row in results.rows("recovery", fault="kill") if row.get("committed_s")]
    names = list(dict.fromkeys(row["workload"] for row in rows))[:2]
    if not any(row["way"] == "holdfast" for row in rows):
        return None
    order = list(dict.fromkeys(row["way"] for row in _sorted(rows, names[0])))
    loads = {
        name: sorted(
            (r for r in rows if r["workload"] == name), key=lambda r: order.index(r["way"])
        )
        for name in names
    }
    return Figure(
        name="recovery",
        question="How long until training continues?",
        answer=_answer(loads, results.rows("recovery", measure="goodput", workload=names[0])),
        caption="From the kill of one of two workers, at a random moment of a step, until all "
        "have committed a step together.",
        source="recovery",
        command="holdfast bench recovery --peers-python peers/bin/python",
        draw=partial(_draw, loads),
        rounds=results.rounds("recovery"),
    )


def _sorted(rows: list[Row], load: str) -> list[Row]:
    """The rows in the order of the drawing: ours, then by the time with one workload."""
    return sorted(
        rows,
        key=lambda row: (
            row["way"] != "holdfast",
            row["workload"] != load,
            median(row["committed_s"]),
        ),
    )


def _answer(loads: dict[str, list[Row]], goodput: list[Row]) -> Sentence:
    (name, rows), *_ = loads.items()
    own = median(rows[0]["committed_s"])
    parts = {"own": seconds("recovery", own)}
    text = f"{{own}} with {name}"
    if len(rows) == 1:
        text += "; no other system was measured"
    else:
        best = min(rows[1:], key=lambda row: median(row["committed_s"]))
        times = (median(best["committed_s"]), own)
        parts["times"] = number("recovery", *times, form="{:.3g} ×", formula="ratio")
        text += f"; the next system, {best['way']}, takes {{times}} as long"
        if best.get("anyone_s"):
            parts["alone"] = seconds("recovery", median(best["anyone_s"]))
            text += ", and its survivor continues alone after {alone}"
    if rows[0].get("recovered"):
        text += f". {rows[0]['recovered']} recoveries succeeded"
    if goodput:
        text += f". With a kill every {goodput[0]['kill_every_s']:g} seconds, goodput is "
        text += ", ".join(f"{{g{place}}} ({row['way']})" for place, row in enumerate(goodput))
        for place, row in enumerate(goodput):
            share = number("recovery", row["goodput"], form="{:.0f} %", formula="percent")
            parts[f"g{place}"] = share
    return say(f"{text}.", **parts)


def _draw(loads: dict[str, list[Row]], t: Tokens) -> Canvas:
    count = max(map(len, loads.values()))
    fig = canvas(90 + 36 * count)
    for place, (load, rows) in enumerate(loads.items()):
        _draw_load(fig, t, place, load, rows, count)
    text = "Log axis. Tick: median until all commit. Bar: lowest to highest. Circle: one alone."
    foot(fig, 24, text, t)
    return fig


def _draw_load(fig: Canvas, t: Tokens, place: int, load: str, rows: list[Row], count: int) -> None:
    left = 134 + place * 298
    limits = {"xlim": (0.05, 30), "ylim": (count - 0.4, -0.6)}
    ax = area(fig, left, 34, 166, 36 * count, xscale="log", **limits)
    drawn = title(fig, left, 16, load, t)
    drawing.note(fig, left + drawing.width_of(fig, drawn) + 8, 16, STATES.get(load, ""), t)
    horizontal(ax)
    drawing.log_axis(ax.xaxis, [0.1, 1, 10], ["0.1 s", "1", "10"])
    own = median(rows[0]["committed_s"])
    for y, row in enumerate(rows):
        name = row["way"]
        mid = median(row["committed_s"])
        mine = name == "holdfast"
        color = t[color_of(name)]
        ink = t["kelp" if mine else "ink"]
        thick = {"color": color, "linewidth": pt(5), "solid_capstyle": "butt"}
        ax.plot(list(bounds(row["committed_s"])), [y, y], **thick)
        ax.plot([mid, mid], [y - 0.26, y + 0.26], **{**thick, "linewidth": pt(2.5)})
        if row.get("anyone_s") and median(row["anyone_s"]) < 0.9 * mid:
            dot(ax, median(row["anyone_s"]), y, t["panel"], color, 7)
        if not place:
            row_text(ax, name, y, -10, ink, size=13, bold=mine)
        row_text(ax, f"{mid:.3g} s", y, 52, ink)
        if not mine:
            row_text(ax, f"{mid / own:.1f} ×", y, 100, t["ink3"], bold=False)
