"""Summary: the results in four bullets, recommendations, strengths and limits, from the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast_bench.report.cited import Sentence, number, say, seconds
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, median

MTBF_S = 3600.0
"""Seconds between two failures for which checkpoint intervals are recommended."""
_MOST = 4


@dataclass(frozen=True, slots=True)
class Bullet:
    """One result.

    Attributes:
        value: The figure.
        text: What it is.
        figure: The name of the figure that shows it.
    """

    value: Sentence
    text: Sentence
    figure: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A setting.

    Attributes:
        question: What is to be decided.
        setting: What to set.
        reason: Why.
        figure: The name of the figure that shows it.
    """

    question: str
    setting: Sentence
    reason: Sentence
    figure: str


def bullets(results: Results, figures: Mapping[str, Figure]) -> list[Bullet]:
    """The first four results that were measured."""
    found = [*_recovery(results), *_weights(results), *_step(results), *_scenarios(results)]
    found += [*_scaling(results), *_checkpoint(results)]
    return [each for each in found if each.figure in figures or each.figure == "scenarios"][:_MOST]


def recommendations(results: Results) -> list[Recommendation]:
    """Recommendations that follow from each benchmark."""
    return [*_intervals(results), *_heartbeats(results), *_shards(results), *_hosts(results)]


def strengths(results: Results) -> list[tuple[Sentence, str]]:
    """Strengths, each with the figure that shows it."""
    found: list[tuple[Sentence, str]] = []
    rows = [r for r in results.rows("recovery") if r.get("of_holdfast") and r["way"] != "holdfast"]
    if rows:
        ratios = [float(row["of_holdfast"]) for row in rows]
        text = "Other set-ups take {low} to {high} as long to recover."
        low = number("recovery", min(ratios), form="{:.1f} ×")
        found.append(
            (say(text, low=low, high=number("recovery", max(ratios), form="{:.1f} ×")), "recovery")
        )
    runs = results.rows("timeline", measure="run")
    if runs and len({row["weights_sha256"] for row in runs}) == 1:
        found.append((say("Failures do not change a bit of the weights."), "loss"))
    return found


def limits(results: Results) -> list[tuple[Sentence, str]]:
    """Limits: results that are not good, or not known."""
    found: list[tuple[Sentence, str]] = []
    eight = results.rows("scaling", way="holdfast, 8 shards", workers=2)
    if eight:
        worst = min(eight, key=lambda row: float(row["of_ddp"]))
        text = f"8 shards on two workers: {{ratio}} as fast as DDP with {worst['workload']}."
        found.append((say(text, ratio=number("scaling", worst["of_ddp"], form="{:.2f} ×")), "step"))
    slow = [row for row in results.rows("emulate", measure="emulated") if row["hosts"] > 1]
    if slow:
        found.append((say("Several hosts share the cores of one machine here."), "scaling"))
    found += _gpu(results)
    if not any(each.conditions.gpus for each in results.by_name.values()):
        found.append((say("Nothing in this report ran on a GPU."), ""))
    return found


def _gpu(results: Results) -> Iterator[tuple[Sentence, str]]:
    rows = results.rows("gpu", way="holdfast")
    if rows and results.by_name["gpu"].conditions.gpus:
        worst = min(rows, key=lambda row: float(row["of_plain"]))
        text = f"One worker on a GPU: {{ratio}} as fast as a plain loop with {worst['load']}."
        yield say(text, ratio=number("gpu", worst["of_plain"], form="{:.2f} ×")), ""


def _recovery(results: Results) -> Iterator[Bullet]:
    rows = results.rows("recovery", fault="kill", way="holdfast")
    if not rows:
        return
    own = median(rows[0]["committed_s"])
    others = [
        row
        for row in results.rows("recovery", fault="kill", workload=rows[0]["workload"])
        if row["way"] != "holdfast" and row.get("committed_s")
    ]
    text = say("From a kill until all workers commit a step. No other system was measured.")
    if others:
        best = min(others, key=lambda row: median(row["committed_s"]))
        times = number(
            "recovery", median(best["committed_s"]), own, form="{:.3g} ×", formula="ratio"
        )
        text = say(
            f"From a kill until all workers commit a step. {best['way']} takes {{times}} as long.",
            times=times,
        )
    yield Bullet(say("{own} to recover", own=seconds("recovery", own)), text, "recovery")


def _weights(results: Results) -> Iterator[Bullet]:
    runs = results.rows("timeline", measure="run")
    if runs and len({row["weights_sha256"] for row in runs}) == 1:
        text = "Weights after no failure, a live recovery and a restart have the same SHA-256."
        yield Bullet(say("0 bits of difference"), say(text), "loss")


def _step(results: Results) -> Iterator[Bullet]:
    rows = [r for r in results.rows("scaling", workers=2) if r["way"] == "holdfast, 2 shards"]
    if rows:
        ratios = sorted({float(row["of_ddp"]) for row in rows})
        parts = {"high": number("scaling", ratios[-1], form="{:.2f} ×")}
        if len(ratios) > 1:
            parts["low"] = number("scaling", ratios[0], form="{:.2f}")
        value = say("{low} to {high} of DDP" if len(ratios) > 1 else "{high} of DDP", **parts)
        yield Bullet(value, say("Throughput of two workers with exact gradients."), "step")


def _scenarios(results: Results) -> Iterator[Bullet]:
    rows = results.rows("scenarios")
    if rows:
        passed = [1.0] * sum(bool(row["passed"]) for row in rows)
        value = say(
            "{passed} of {all} scenarios",
            passed=number("scenarios", *passed, form="{:.0f}", formula="count"),
            all=number("scenarios", *[1.0] * len(rows), form="{:.0f}", formula="count"),
        )
        yield Bullet(
            value,
            say("Failures at known steps ended as they must, with equal weights."),
            "scenarios",
        )


def _scaling(results: Results) -> Iterator[Bullet]:
    rows = results.rows("emulate", measure="emulated", scaling="weak")
    if len(rows) > 1:
        last = rows[-1]
        value = say(
            "{share} efficient",
            share=number("emulate", last["efficiency"], form="{:.1f} %", formula="percent"),
        )
        text = say(
            "Weak scaling to {hosts} emulated hosts.",
            hosts=number("emulate", last["hosts"], form="{:.0f}"),
        )
        yield Bullet(value, text, "scaling")


def _checkpoint(results: Results) -> Iterator[Bullet]:
    rows = results.rows("checkpoint", measure="saving", system="holdfast")
    rows = [row for row in rows if row.get("overhead_pct")]
    if rows:
        row = max(rows, key=lambda each: each["every"])
        value = say(
            "{share} for checkpoints",
            share=number("checkpoint", median(row["overhead_pct"]), form="{:.3g} %"),
        )
        text = say(
            "With one every {every} steps.", every=number("checkpoint", row["every"], form="{:.0f}")
        )
        yield Bullet(value, text, "checkpoint")


def _intervals(results: Results) -> Iterator[Recommendation]:
    """Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 1974; Daly, "A
    Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps", FGCS 2006.
    """
    rows = results.rows("checkpoint", measure="saving", system="holdfast")
    rows = [row for row in rows if row.get("stall_ms") and median(row["stall_ms"]) > 0]
    if not rows:
        return
    stall = median(rows[0]["stall_ms"])
    interval = number("checkpoint", stall, MTBF_S, form="{:.2g}", formula="young")
    yield Recommendation(
        "How often to checkpoint?",
        say("checkpoint.every_s={interval}", interval=interval),
        say(
            "√(2 × {stall} × one failure an hour), by Young and Daly: the steps of that time are "
            "recomputed only if all workers are lost",
            stall=number("checkpoint", stall, form="{:.3g} ms"),
        ),
        "checkpoint",
    )


def _heartbeats(results: Results) -> Iterator[Recommendation]:
    rows = results.rows("heartbeat", agents=1)
    if not rows:
        return
    row = min(rows, key=lambda each: abs(each["interval_s"] - 1))
    yield Recommendation(
        "How often should agents report?",
        say("heartbeat.interval_s={interval}", interval=number("heartbeat", row["interval_s"])),
        say(
            "{traffic} an agent, and a lost host is found after {found}",
            traffic=number(
                "heartbeat", row["bytes_per_s"], form="{:.2f} KB/s", formula="per_thousand"
            ),
            found=seconds("heartbeat", median(row["detection_s"])),
        ),
        "heartbeat",
    )


def _shards(results: Results) -> Iterator[Recommendation]:
    rows = results.rows("scaling", way="holdfast, 8 shards", workers=2)
    if not rows:
        return
    worst = min(rows, key=lambda row: float(row["of_ddp"]))
    yield Recommendation(
        "How many shards?",
        say("shards: the most workers that will take part"),
        say(
            f"8 shards on two workers run {worst['workload']} at {{ratio}} of DDP's speed",
            ratio=number("scaling", worst["of_ddp"], form="{:.2f} ×"),
        ),
        "step",
    )


def _hosts(results: Results) -> Iterator[Recommendation]:
    for row in results.rows("qlora", measure="recommendation"):
        if row["hosts"] is not None:
            yield Recommendation(
                "How many hosts?",
                say("hosts={hosts}", hosts=number("qlora", row["hosts"], form="{:.0f}")),
                say(str(row["reason"])),
                "cost",
            )
