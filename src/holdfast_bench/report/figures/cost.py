"""Figure: one host or several."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import area, canvas, foot, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row, median
from holdfast_bench.report.theme import Tokens


def figure(results: Results) -> Figure | None:
    """From `qlora.json`."""
    rows = results.rows("qlora", measure="hosts")
    if not rows:
        return None
    advice = results.rows("qlora", measure="recommendation")[0]
    model = results.rows("qlora", measure="model")[0]
    best = next((row for row in rows if row["hosts"] == advice["hosts"]), None)
    samples = number("qlora", advice["samples"], form="{:,.0f}")
    if best is None:
        answer = say("For {samples} samples: " + advice["reason"] + ".", samples=samples)
    else:
        limit = "" if advice["deadline_h"] is None else " within the deadline"
        answer = say(
            "For {samples} samples{limit} {hosts} host is best: {cost} per 1,000 samples.".replace(
                "{limit}", limit
            ).replace("host is", "hosts are" if best["hosts"] > 1 else "host is"),
            samples=samples,
            hosts=number("qlora", best["hosts"], form="{:.0f}"),
            cost=number("qlora", best["cost_per_1000"], form="${:.4f}"),
        )
    return Figure(
        name="cost",
        question="One host or several?",
        answer=answer,
        caption=f"Cost = hosts × hours × price, start included. Mistral with {model['weights']} "
        f"weights, {model['trained_parameters']:,} trained parameters of rank {model['rank']}, "
        f"{model['length']} tokens a sample, {model['batch']} samples a host. "
        f"{advice['reason'][0].upper()}{advice['reason'][1:]}.",
        source="qlora",
        command="holdfast bench qlora",
        draw=partial(_draw, rows, advice),
        rounds=results.rounds("qlora"),
    )


def _draw(rows: list[Row], advice: Row, t: Tokens) -> Canvas:
    fig = canvas(276)
    panels = (
        ("Cost of 1,000 samples", [r["cost_per_1000"] for r in rows], "${:.4f}", 44),
        ("Samples per second", [median(r["samples_per_s"]) for r in rows], "{:.3g}", 396),
    )
    for heading, values, form, left in panels:
        ax = area(
            fig, left, 40, 300, 176, xlim=(-0.6, len(rows) - 0.4), ylim=(0, 1.22 * max(values))
        )
        ax.set_yticks([])
        ax.grid(visible=False)
        names = [f"{r['hosts']}{' host' if not i else ''}" for i, r in enumerate(rows)]
        ax.set_xticks(range(len(rows)), names)
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            best = row["hosts"] == advice["hosts"]
            hollow = row["kind"] == "predicted"
            face = t["panel"] if hollow else t["holdfast" if best else "published"]
            edge = t["holdfast" if best else "published"]
            ax.bar(place, value, 0.52, facecolor=face, edgecolor=edge, linewidth=1.0)
            text = {"textcoords": "offset points", "ha": "center", "fontsize": pt(12)}
            ink = t["kelp" if best else "ink"]
            ax.annotate(
                form.format(value), (place, value), (0, pt(6)), color=ink, fontweight=600, **text
            )
        title(fig, left, 20, heading, t)
    price = f"${advice['price']:g} per host and hour"
    foot(fig, 44, f"Filled: measured or emulated; hollow: predicted. {price}. Axes from 0.", t)
    return fig
