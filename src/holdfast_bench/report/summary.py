"""Summary: headline results, recommendations, strengths and limits, from the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_bench.report.cited import Number, Sentence, number, say, seconds
from holdfast_bench.report.results import Results, Row, bounds, median, noise, values

MTBF_S = 3600.0
"""Seconds between two failures for which checkpoint intervals are recommended."""
Pair = tuple[float, float]


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


def bullets(results: Results) -> list[Bullet]:
    """All headline results that were measured."""
    makers = (
        _recovery, _weights, _of_ddp, _of_plain, _on_gpu, _checkpoint, _scaling, _lost_host
    )  # fmt: skip
    return [bullet for make in makers for bullet in make(results)]


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
    if not any(each.conditions.gpus for each in results.by_name.values()):
        found.append((say("Nothing in this report ran on a GPU."), ""))
    elif not any(_on_gpu(results)):
        found.append((say("The speed on a GPU is not among these results."), ""))
    return found


def _bullet(name: str, value: Sentence, text: Sentence, figure: str, doubt: str) -> Bullet:
    """A result as a headline; one that is noise says so instead."""
    if not doubt:
        return Bullet(value, text, figure)
    measured = Sentence(f"{value.template}. {text.template}", {**value.numbers, **text.numbers})
    return Bullet(say(f"{name}: {doubt}"), measured, figure)


def _recovery(results: Results) -> Iterator[Bullet]:
    rows = [row for row in results.rows("recovery", fault="kill") if row.get("committed_s")]
    ours = [row for row in rows if row["way"] == "holdfast"]
    if not ours:
        return
    own = median(ours[0]["committed_s"])
    load = ours[0]["workload"]
    others = [row for row in rows if row["way"] != "holdfast" and row["workload"] == load]
    spread, numbers = _spread("recovery", ours[0]["committed_s"], "{:.3g} s")
    text = f"From a kill until all workers commit a step, with {load}; {spread}. "
    if others:
        best = min(others, key=lambda row: median(row["committed_s"]))
        text += f"The best other system, {best['way']}, takes {{times}} as long."
        times = (median(best["committed_s"]), own)
        numbers["times"] = number("recovery", *times, form="{:.3g} ×", formula="ratio")
    else:
        text += "No other system was measured."
    value = say("{own} to recover", own=seconds("recovery", own))
    doubt = noise(values(ours[0]["committed_s"]))
    yield _bullet("Recovery", value, say(text, **numbers), "recovery", doubt)


def _weights(results: Results) -> Iterator[Bullet]:
    runs = results.rows("timeline", measure="run")
    if not runs or len({row["weights_sha256"] for row in runs}) > 1:
        return
    text = "Weights after no failure, a live recovery and a restart have the same SHA-256."
    numbers = {}
    if rows := results.rows("scenarios"):
        text += " {passed} of {all} failures at known steps ended as they must, with equal weights."
        passed = sum(bool(row["passed"]) for row in rows)
        for name, count in (("passed", passed), ("all", len(rows))):
            ones = [1.0] * count
            numbers[name] = number("scenarios", *ones, form="{:.0f}", formula="count")
    yield Bullet(say("0 bits of difference"), say(text, **numbers), "loss")


def _of_ddp(results: Results) -> Iterator[Bullet]:
    loads = _by_load(results, "holdfast, 2 shards", "DDP")
    text = "Two workers with exact gradients and a shard each"
    yield from _ratios("scaling", loads, "Two workers and DDP", "DDP", text, "step")


def _of_plain(results: Results) -> Iterator[Bullet]:
    loads = _by_load(results, "holdfast, 1 worker of 2 threads", "one process")
    text = "One worker of two threads, and a plain process with as many"
    yield from _ratios("scaling", loads, "One worker", "a plain process", text, "step")


def _by_load(results: Results, own: str, other: str) -> dict[str, list[Pair]]:
    """Samples/s of two systems in each round, by workload."""
    found: dict[str, dict[str, Row]] = {}
    for row in results.rows("scaling", workers=2):
        found.setdefault(row["workload"], {})[row["way"]] = row
    return {
        load: _pairs(rows[own]["samples_per_s"], rows[other]["samples_per_s"])
        for load, rows in found.items()
        if {own, other} <= rows.keys()
    }


def _on_gpu(results: Results) -> Iterator[Bullet]:
    rows = results.rows("gpu", shards=1)
    base = {row["load"]: row for row in rows if row["way"] == "plain, deterministic"}
    loads = {
        row["load"]: _pairs(base[row["load"]]["step_ms"], row["step_ms"])
        for row in rows
        if row["way"] == "holdfast" and "step_ms" in row and row["load"] in base
    }
    for gpu in results.by_name["gpu"].conditions.gpus[:1] if loads else ():
        text = f"One worker on one {gpu}, and a plain, deterministic loop"
        yield from _ratios("gpu", loads, f"One worker on one {gpu}", "a plain loop", text, "")


def _pairs(cell: Any, other: Any) -> list[Pair]:
    """Two measurements of each round, by their ratio."""
    return sorted(zip(values(cell), values(other), strict=True), key=lambda pair: pair[0] / pair[1])


def _ratios(
    source: str, loads: Mapping[str, list[Pair]], name: str, of: str, text: str, figure: str
) -> Iterator[Bullet]:
    """A bullet of the median ratio of each workload, with its range."""
    if not loads:
        return
    numbers = dict[str, Number]()
    for place, pairs in enumerate(loads.values()):
        middle = pairs[(len(pairs) - 1) // 2]
        for key, pair in (("mid", middle), ("low", pairs[0]), ("high", pairs[-1])):
            numbers[f"{key}{place}"] = number(source, *pair, form="{:.2f} ×", formula="ratio")
    value = " · ".join(f"{{mid{place}}} with {load}" for place, load in enumerate(loads))
    ranges = " · ".join(f"{{low{place}}} to {{high{place}}}" for place in range(len(loads)))
    doubts = [noise([a / b for a, b in pairs], 1) for pairs in loads.values()]
    count = max(map(len, loads.values()))
    text += f"; {ranges}, n = {count}." if count > 1 else "."
    whole = say(f"{value}, of the speed of {of}", **numbers)
    doubt = doubts[0] if all(doubts) else ""
    yield _bullet(name, whole, say(text, **numbers), figure, doubt)


def _checkpoint(results: Results) -> Iterator[Bullet]:
    rows = results.rows("checkpoint", measure="saving", system="holdfast")
    rows = [row for row in rows if row.get("overhead_pct")]
    if not rows:
        return
    row = min(rows, key=lambda each: abs(each["every"] - 10))
    cell = row["overhead_pct"]
    value = say(
        "{share} overhead with a checkpoint every {every} steps",
        share=number("checkpoint", median(cell), form="{:.3g} %"),
        every=number("checkpoint", row["every"], form="{:.0f}"),
    )
    spread, numbers = _spread("checkpoint", cell, "{:.3g} %")
    text = say(f"Workload {row['workload']}; {spread}.", **numbers)
    yield _bullet("Cost of checkpoints", value, text, "checkpoint", noise(values(cell), 0))


def _scaling(results: Results) -> Iterator[Bullet]:
    rows = results.rows("emulate", measure="emulated", scaling="weak")
    if len(rows) < 2:
        return
    numbers = dict[str, Number]()
    for place, row in enumerate(rows):
        share = number("emulate", row["efficiency"], form="{:.1f} %", formula="percent")
        numbers |= {f"share{place}": share, f"hosts{place}": number("emulate", row["hosts"])}
    last = len(rows) - 1
    others = ", ".join(f"{{share{place}}} on {{hosts{place}}}" for place in range(1, last))
    value = say(f"{{share{last}}} efficient on {{hosts{last}}} emulated hosts", **numbers)
    text = say(f"Weak scaling{others and '; '}{others}.", **numbers)
    doubt = noise(values(rows[last]["step_s"]))
    yield _bullet("Emulated hosts", value, text, "scaling", doubt)


def _lost_host(results: Results) -> Iterator[Bullet]:
    rows = results.rows("heartbeat")
    if not rows:
        return
    row = min(rows, key=lambda each: (abs(each["interval_s"] - 1), each["agents"]))
    cell = row["detection_s"]
    spread, numbers = _spread("heartbeat", cell, "{:.3g} s")
    text = f"From the cut, with a heartbeat every {{interval}}; {spread}."
    numbers["interval"] = number("heartbeat", row["interval_s"], form="{:g} s")
    for cut in results.rows("hosts", measure="recovery", system="host cut off")[:1]:
        text += f" On {cut['hosts']} emulated hosts all train on with {cut['what']} after {{all}}."
        after_ms = median(cut["ms"])
        numbers["all"] = number("hosts", after_ms, form="{:.3g} s", formula="per_thousand")
    value = say("{found} to detect a lost host", found=seconds("heartbeat", median(cell)))
    yield _bullet("A lost host", value, say(text, **numbers), "heartbeat", noise(values(cell)))


def _spread(source: str, cell: Any, form: str) -> tuple[str, dict[str, Number]]:
    """The range of a cell as a template, and its numbers."""
    count = len(values(cell))
    low, high = bounds(cell)
    ends = {"low": number(source, low, form=form), "high": number(source, high, form=form)}
    return f"{{low}} to {{high}}, n = {count}" if count > 1 else "n = 1", ends


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
