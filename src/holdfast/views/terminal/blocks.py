"""Blocks: the parts of the screen, from top to bottom, as lines."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from holdfast.job.script_job import ScriptJob
from holdfast.record import history
from holdfast.record.breakdown import OTHER
from holdfast.record.recovery_reports import causes_in_words
from holdfast.record.run_record import Event
from holdfast.record.state import StateName
from holdfast.record.units import MISSING, clock, count, digits, duration
from holdfast.record.views.headline import headline_of
from holdfast.record.views.metric import metric_of
from holdfast.record.views.pace import epochs_of, goodput_of, left_s, mean_loss, step_s
from holdfast.record.views.run_at import FailureMark, RunAt, joined_hosts, step_at
from holdfast.record.views.worker_rows import CPU, RUNNING, WorkerNow, worst_first
from holdfast.views.terminal import lines
from holdfast.views.terminal.lines import Column, Look, sides

STATES: Final = {
    StateName.WAITING: ("○", ""),
    StateName.STARTING: ("○", ""),
    StateName.RUNNING: ("●", "green"),
    StateName.RECOVERING: ("↻", "yellow"),
    StateName.STALLED: ("‖", "red"),
    StateName.FINISHED: ("✓", "blue"),
    StateName.STOPPED: ("■", "yellow"),
    StateName.FAILED: ("✕", "red"),
}
"""Icon and style of each state."""
RECOVERED: Final = ("recovered", "restarted")
"""Outcomes after which a run makes progress again."""
MAX_BAND: Final = 3
"""Lines."""
_LEVELS: Final = {"failure": "bold red", "warning": "bold yellow", "done": "bold blue"}
_PARTS: Final = {
    "data": ("D", "cyan"),
    "forward": ("F", "blue"),
    "backward": ("B", "magenta"),
    "reduce": ("R", "green"),
    "wait": ("W", "yellow"),
    "optimizer": ("O", "white"),
    "checkpoint": ("C", "red"),
    OTHER: ("-", "dim"),
}
"""Letter and style of each part of a step."""
_TITLE: Final = 6
"""The width of the titles of the step's lines."""


def header(run: RunAt, width: int, look: Look) -> list[Text]:
    """State of the run, its progress, and the remaining time."""
    name = run.state.name
    icon, style = STATES[name]
    word = f"{icon} {name.upper()}" if look.is_utf8 else name.upper()
    lasted = duration(run.elapsed_s)
    right = Text(f"{time.strftime('%H:%M:%S', time.localtime(run.now))}   up {lasted}")
    if run.has_ended:
        right = Text(f"ended {clock(run.end, run.now)}   ran {lasted}")
    state = Text.assemble("   ", (word, f"bold {style}"))
    title = Text.assemble(("holdfast", "dim"), "  ", (run.record.path.name, "bold"))
    free = width - len(state.plain) - len(right.plain) - 1
    if len(title.plain) > free:
        title = Text(lines.cut(run.record.path.name, max(1, free)), "bold")
    return [
        sides(title.append_text(state), right, width),
        _progress(run, width, look),
        _left(run, width),
    ]


def _progress(run: RunAt, width: int, look: Look) -> Text:
    total = run.record.total_steps
    newest = run.record.steps.newest
    _, style = STATES[run.state.name]
    if not total:
        return Text(f"step {newest:,}")
    begin = f"step {newest:,}/{total:,} "
    share = newest / total
    end = f" {100 * min(1.0, share):3.0f} %"
    marks = {min(1.0, mark.step / total): mark.name for mark in run.marks}
    free = max(0, width - len(begin) - len(end))
    return Text(begin).append_text(lines.progress(share, marks, free, look, style)).append(end)


def _left(run: RunAt, width: int) -> Text:
    epochs = epochs_of(run.record)
    left = Text(f"epoch {epochs[0]:.1f} of {epochs[1]}" if epochs else "")
    if not epochs and run.has_steps and not isinstance(run.record.job, ScriptJob):
        left = Text(f"epoch {run.record.steps.columns['epoch'][-1] + 1}")
    remaining = None if run.has_ended else left_s(run)
    return sides(left, Text("" if remaining is None else f"{duration(remaining)} left"), width)


def figures(run: RunAt, width: int) -> list[Text]:
    """Loss and speed of the run, what failed, and what would be lost now."""
    metric = metric_of(run.record)
    name, value = (
        (metric.title.lower(), metric.shown(metric.values[-1])) if metric else ("accuracy", MISSING)
    )
    facts = [("loss", digits(mean_loss(run.record))), (name, value), ("goodput", _goodput(run))]
    left = Text("  ").join(Text.assemble((f"{each} ", "dim"), words) for each, words in facts)
    step_time_s = step_s(run.record)
    took = f"{digits(1000 * step_time_s)} ms" if step_time_s < 1 else duration(step_time_s)
    step = Text.assemble(("step ", "dim"), took)
    failed = Text.assemble(("failures ", "dim"), _failures(run))
    return [sides(left, step, width), sides(failed, _checkpoint(run), width)]


def _goodput(run: RunAt) -> str:
    goodput = goodput_of(run)
    if goodput is None:
        return MISSING
    rate, share = goodput
    tokens = run.record.tokens_per_sample
    return f"{digits(rate)}/s, {f'{digits(rate * tokens)} tokens/s, ' if tokens else ''}{share}"


def _failures(run: RunAt) -> str:
    reports = run.record.recoveries
    total = len(run.marks)
    if not total:
        return "none"
    done = sum(each.outcome in RECOVERED for each in reports)
    steps = sum(each.recomputed_steps for each in reports)
    return f"recovered {done} of {total}, {count(steps, 'step')} recomputed"


def _checkpoint(run: RunAt) -> Text:
    saved = run.record.checkpoints
    words = f"{saved[-1].step:,}, {duration(run.end - saved[-1].at)} ago" if saved else "none yet"
    if run.has_ended and saved:
        is_final = saved[-1].step == run.record.steps.newest
        words = f"{saved[-1].step:,}{', final' * is_final}"
    return Text.assemble(("checkpoint ", "dim"), words)


def band(run: RunAt, width: int, look: Look) -> list[Text]:
    """Advice for now; empty without any."""
    found = headline_of(run.record, run.state, run.now)
    if found is None:
        return []
    style = _LEVELS[found.level]
    said = textwrap.wrap(
        f"{found.title} {' '.join(found.words.replace('`', '').split())}",
        max(10, width - 2), break_on_hyphens=False, max_lines=MAX_BAND,
        placeholder=f" {lines.ELLIPSIS}",
    )  # fmt: skip
    icon = found.icon if look.is_utf8 else "!"
    band = [Text(f"{' ' if row else icon} {each}") for row, each in enumerate(said)]
    band[0].stylize(style, 0, 2 + len(found.title))
    if found.more and len(band[-1].plain) + 2 + len(found.more) <= width:
        band[-1] = sides(band[-1], Text(found.more, "dim"), width)
    return band


def step(run: RunAt, width: int, look: Look) -> list[Text]:
    """Use of the workers' time, the mean of all, as words and as a bar."""
    shares = run.step_parts()
    free = width - _TITLE
    if not shares:
        return [
            Text.assemble(
                ("STEP", "dim"), "  ", ("needs a step" if not run.has_ended else MISSING)
            ),
            Text(),
        ]
    for name in sorted(shares, key=shares.__getitem__):
        small = shares[name] < 0.005 or len(_in_words(shares)) > free
        if small and name != OTHER:
            shares[OTHER] += shares.pop(name)
    bar = lines.parts(
        [(_PARTS[name][0], share, _PARTS[name][1]) for name, share in shares.items()], free, look
    )
    title = Text("STEP".ljust(_TITLE), "dim")
    return [title + Text(_in_words(shares)), Text(" " * _TITLE) + bar]


def _in_words(shares: dict[str, float]) -> str:
    words = [f"{name.capitalize()} {100 * share:.0f}" for name, share in shares.items()]
    return "  ".join([f"{words[0]} %", *words[1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A failure with its recovery, or a host that joined.

    Attributes:
        at: Unix time, seconds.
        step: The steps committed before.
        name: Its number; `+` for a host that joined, `!` for a failure that lasts.
        words: Event, in words.
        recovered, recomputed: Its cost; empty if none.
    """

    at: float
    step: int
    name: str
    words: str
    recovered: str = ""
    recomputed: str = ""


def timeline_of(run: RunAt) -> list[TimelineRow]:
    """The failures of a run and the hosts that joined it, the newest first."""
    found = [_failure(run, mark) for mark in run.marks]
    found += [_joined(run, event) for event in joined_hosts(run.record)]
    return sorted(found, key=lambda each: each.at, reverse=True)


def _failure(run: RunAt, mark: FailureMark) -> TimelineRow:
    report = mark.report
    if report is None:
        failure = run.record.open_failure
        words = history.words(failure).replace(" was killed by", " killed by") if failure else ""
        outcome = MISSING if run.has_ended else "recovering"
        return TimelineRow(
            at=mark.begin, step=mark.step, name=mark.name, words=words, recovered=outcome
        )
    is_over = report.outcome in RECOVERED
    return TimelineRow(
        at=mark.begin,
        step=mark.step,
        name=mark.name,
        words=causes_in_words(report),
        recovered=duration(report.total_s) if is_over else report.outcome,
        recomputed=count(report.recomputed_steps, "step"),
    )


def _joined(run: RunAt, event: Event) -> TimelineRow:
    at = float(event["time_unix_s"])
    words = f"host {event.get('host', '')} joined"
    return TimelineRow(at=at, step=step_at(run.record, at), name="+", words=words)


_COLUMNS: Final = (
    Column(title="EVENTS", width=8, is_left=True, gap=0, importance=9),
    Column(title="", width=10, importance=5),
    Column(title="", width=3, gap=1, importance=8),
    Column(title="", width=24, max_width=200, is_left=True, gap=1, importance=9),
    Column(title="recovered in", width=12, gap=1, importance=7),
    Column(title="recomputed", width=10, importance=6),
)


def events(run: RunAt, width: int, rows: int) -> list[Text]:
    """The newest failures with their recoveries, and the hosts that joined."""
    found: Sequence[TimelineRow] = timeline_of(run)[:rows]
    cells = [
        [
            Text(time.strftime("%H:%M:%S", time.localtime(each.at))),
            Text(f"step {each.step:,}"),
            Text(each.name, "bold green" if each.name == "+" else "bold red"),
            Text(each.words),
            Text(each.recovered),
            Text(each.recomputed),
        ]
        for each in found
    ]
    used = sum(column.width + column.gap for column in _COLUMNS)
    columns = [*_COLUMNS]
    if width > used:  # the last columns stay at the right
        wide = columns[3].width + width - used
        columns[3] = Column(title="", width=wide, is_left=True, gap=1, importance=9)
    table = lines.fitted(columns, cells, width)
    if not cells:
        table.append(Text("no failure so far" if not run.has_ended else "no failure", "dim"))
    return table[: rows + 1]


METER: Final = 8
"""The width of the bar of a worker's utilization."""
MEMORY: Final = 7
_WORKER_STATES: Final = {
    RUNNING: "green", "starting": "", "standby": "yellow", "failed": "bold red",
    "hung": "bold red", "lost": "bold red", "ended": "dim",
}  # fmt: skip
_GB: Final = 1e9
_SHORTER: Final = re.compile(r"^(NVIDIA )?(GeForce )?")
"""Words that names of GPUs begin with."""


def worker_table(workers: list[WorkerNow], width: int, look: Look, rows: int) -> list[Text]:
    """The workers that fit, and a header; of more than that, the worst."""
    if not workers:
        return [Text("RANK  workers appear once they have started", "dim")]
    shown = workers if len(workers) <= rows else worst_first(workers)[:rows]
    has_gpu = any(each.device != CPU for each in workers)
    columns = (
        Column(title="RANK", width=4, gap=0, importance=9),
        Column(title="HOST", width=7, max_width=24, is_left=True, importance=4),
        Column(title="DEVICE", width=8, max_width=24, is_left=True, importance=2),
        Column(title="STATE", width=8, is_left=True, importance=8),
        Column(title="SHARDS", width=6, gap=0, importance=5),
        Column(title="GPU" if has_gpu else CPU, width=METER + 6, is_left=True, importance=7),
        Column(title="MEM GB", width=MEMORY, gap=1, importance=3),
        Column(title="TEMP", width=4, gap=1, importance=1),
        Column(title="DATA", width=5, gap=1, importance=6),
        Column(title="WAIT", width=5, gap=1, importance=6),
    )
    return lines.fitted(columns, [_cells(each, look) for each in shown], width)


def _cells(worker: WorkerNow, look: Look) -> list[Text]:
    used = worker.used
    bar = Text(MISSING) if used is None else lines.meter(used, METER, look, "green")
    heat = worker.temperature_c
    return [
        Text(str(worker.rank)),
        Text(worker.host or MISSING),
        Text(_SHORTER.sub("", worker.device)),
        Text(worker.state, _WORKER_STATES[worker.state]),
        Text(MISSING if worker.shards is None else f"{worker.shards:.3g}"),
        bar.append("" if used is None else f" {100 * used:3.0f} %"),
        Text(_memory(worker)),
        Text(MISSING if heat is None else f"{heat:.0f} C"),
        Text(_share(worker.data)),
        Text(_share(worker.wait)),
    ]


def _memory(worker: WorkerNow) -> str:
    held = worker.memory_bytes
    total = worker.memory_total_bytes
    if held is None:
        return MISSING
    short = f"{held / _GB:.{0 if held >= 9.95 * _GB else 1}f}"
    of = f"/{total / _GB:.0f}" if total else ""
    return f"{short}{of}" if len(short + of) <= MEMORY else short


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.0f} %"
