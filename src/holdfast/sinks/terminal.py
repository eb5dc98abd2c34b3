"""Terminal: shows a run on standard error, by a live line, or by plain lines in a pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from holdfast.core.protocol import WorkerProgress
from holdfast.record import history, live_state, recovery_reports
from holdfast.record.live_state import ProgressRate
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.sink import Ending, Sink
from holdfast.sinks.tee import Tee
from holdfast.wire.rpc import RunStateMessage

PLAIN_INTERVAL_S: Final = 5.0
WAIT_S: Final = 2.0
"""Time that a run waits before the terminal says what for."""

MAX_SHOWN: Final = 4
"""Most numbers of an evaluation that are shown."""

MAX_LIST_WIDTH: Final = 60
"""Most of a list that is shown among the results, characters."""

_NAMED: Final = {"evaluate": "evaluating", "checkpoint": "saving a checkpoint"}
"""Phases that are shown, in words."""


_NEED_ATTENTION: Final = frozenset(
    {
        "keys-not-read",
        "samples-not-compared",
        "checkpoint-failed",
        "checkpoint-corrupt",
        "checkpoint-unreadable",
        "backup-failed",
        "numerics-changed",
        "code-changed",
        "host-refused",
    }
)
"""Events that are shown as they happen: the user may have to do something."""


class PlainConsole(Console):
    """Standard error; once its reader is gone, the run continues silently."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError), open(os.devnull, "wb") as null:  # noqa: PTH123  # a device
            os.dup2(null.fileno(), self.file.fileno())  # else the interpreter fails as it ends


class Terminal(Sink):
    """Shows a run on standard error.

    Args:
        tee: Reader of what workers print, to be shown too.
        logs: The directory of the workers' logs.
        console: Console to show it on; by default standard error.
        clock: Monotonic seconds.
        hint: Advice about a host that is lost; shown with the first one.
        tokens_per_sample: Tokens of a sample; None if it has none.
    """

    def __init__(
        self,
        tee: Tee,
        logs: Path,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        hint: str = "",
        tokens_per_sample: int | None = None,
    ) -> None:
        self._tee = tee
        self._logs = logs
        self._clock = clock
        self._console = console or PlainConsole(stderr=True)
        self._pace = ProgressRate()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = BarColumn(bar_width=20), TextColumn("{task.description}", markup=False)
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=None)
        self._printed_at = clock()
        self._printed = ""
        self._waiting_since: float | None = None
        self._printed_wait = ""
        self._evaluated = ""
        self._without_checkpoints: set[str] = set()
        """Hosts that could not write their newest one; an empty name for the only host."""
        self._hint = hint
        self._tokens_per_sample = tokens_per_sample

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Show events that need attention, and evaluations: in the live line or by a plain one."""
        if line.get("event") in _NEED_ATTENTION and self._is_new(line):
            self.print_lines(history.words(line))
        if line.get("event") == "checkpoint-committed":
            self._note_checkpoint(line.get("host", ""))
        if "evaluation" in line:
            self._evaluated = _numbers(line["evaluation"])
            if self._bar is None and self._evaluated:
                self.print_lines(f"evaluation after step {line['step']}: {self._evaluated}")

    def on_progress(self, state: RunStateMessage) -> None:
        """Show what workers have printed, how far the run is, and what it waits for."""
        with suppress(OSError):  # the terminal may have been closed
            for line in self._tee.lines():
                self._print(line)
            self._show(state.progress, self._wait_of(state))

    def on_recovery(self, report: RecoveryReport) -> None:
        """Show the report."""
        self.print_lines(recovery_reports.text(report, self._logs))
        if self._hint and any(cause.who == "host" for cause in report.causes):
            self.print_lines(self._hint)
            self._hint = ""

    def print_lines(self, text: str) -> None:
        """Print some lines, above the live one."""
        with suppress(OSError):  # the terminal may have been closed
            self._print(text)

    def close(self, _: Ending | None = None) -> None:
        """Print the workers' last lines and leave the terminal as it was."""
        with suppress(OSError):  # the terminal may have been closed
            for line in self._tee.last_lines():
                self._print(line)
            if self._bar is not None:
                self._bar.stop()

    def _is_new(self, line: Mapping[str, Any]) -> bool:
        """True if it says more than the one before: a full disk fails every checkpoint."""
        if line["event"] != "checkpoint-failed":
            return True
        host = line.get("host", "")
        is_first = host not in self._without_checkpoints
        self._without_checkpoints.add(host)
        return is_first

    def _note_checkpoint(self, host: str) -> None:
        if host in self._without_checkpoints:
            self._without_checkpoints.remove(host)
            self.print_lines(f"checkpoints are written again{f' (host {host})' if host else ''}")

    def _wait_of(self, state: RunStateMessage) -> str:
        """Name what the run waits for, once it has waited for long."""
        now = self._clock()
        if not state.waiting_for:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since >= WAIT_S:
            return f"waiting for {state.waiting_for}"
        return ""

    def _show(self, progress: Mapping[int, WorkerProgress], wait: str) -> None:
        facts = ""
        step = 0
        total = None
        furthest = live_state.furthest([*progress.values()])
        if furthest is not None:
            step = furthest.step
            total = furthest.total_steps or None
        now = self._clock()
        if furthest is not None and (furthest.total_steps or furthest.epochs or step):
            self._pace.note(now, step, max(worker.samples for worker in progress.values()))
            phases = {worker.phase for worker in progress.values()}
            facts = _facts(furthest, phases, self._pace(), self._tokens_per_sample)
        if self._bar is not None and (facts or wait):
            words = "  ".join(filter(None, (facts, self._evaluated, wait)))
            self._bar.update(self._task, total=total, completed=step, description=words)
            self._bar.start()
        elif self._bar is None:
            self._show_plainly(facts, wait, now)

    def _show_plainly(self, facts: str, wait: str, now: float) -> None:
        """Print a line of facts every few seconds, and each wait once."""
        if wait != self._printed_wait:
            self._printed_wait = wait
            if wait:
                self._print(wait)
        elif facts and now - self._printed_at >= PLAIN_INTERVAL_S and facts != self._printed:
            self._printed_at = now
            self._printed = facts
            self._print(facts)

    def _print(self, line: str) -> None:
        self._console.print(Text.from_ansi(line), soft_wrap=True)


def _facts(
    furthest: WorkerProgress, phases: set[str], pace: tuple[float, float] | None, tokens: int | None
) -> str:
    """Progress of the run, loss and speed in words, and what keeps some worker from training."""
    step = furthest.step
    total = furthest.total_steps
    is_script = not (total or furthest.epochs)
    unknown = "" if is_script else "loss not finite"
    epoch = f"epoch {furthest.epoch + 1}" + (f"/{furthest.epochs}" if furthest.epochs else "")
    facts = [
        "" if is_script else epoch,
        f"step {step}" + (f"/{total}" if total else ""),
        (unknown if furthest.loss is None else f"loss {furthest.loss:.4f}") if step else "",
    ]
    if pace is not None:
        steps_per_s, samples_per_s = pace
        facts += [f"{samples_per_s:,.0f} samples/s"] if samples_per_s else []
        facts += [f"{samples_per_s * tokens:,.0f} tokens/s"] if tokens else []
        if total:
            facts.append(f"{timedelta(seconds=round((total - step) / steps_per_s))} left")
    facts += [name for phase, name in _NAMED.items() if phase in phases]
    return "  ".join(filter(None, facts))


def _numbers(results: Mapping[str, Any]) -> str:
    """The first numbers among the results of an evaluation."""
    numbers = [(name, value) for name, value in results.items() if isinstance(value, int | float)]
    return "  ".join(f"{name} {value:.4g}" for name, value in numbers[:MAX_SHOWN])


def closing_table(rows: Mapping[str, object]) -> str:
    """The results of a run, a line each, wide enough for a hash and narrow enough for a screen."""
    width = max(len(name) for name in rows) + 2
    return "\n".join(f"{name:<{width}}{_cell(value)}" for name, value in rows.items())


def _cell(value: object) -> str:
    match value:
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{name} {_cell(part)}" for name, part in value.items())
        case list():
            text = str(value)
            return text if len(text) <= MAX_LIST_WIDTH else f"{text[:MAX_LIST_WIDTH]} …"
    return str(value)
