"""Top: shows a run until it is left, or in a pipe until the run has ended."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.errors import JobError
from holdfast.linux.lifeline import STOP_SIGNALS, handling
from holdfast.record.registry import Record
from holdfast.record.run_record import RunRecord
from holdfast.record.views.run_at import RunAt
from holdfast.views.terminal.lines import look_of, plain
from holdfast.views.terminal.plain import PlainLines
from holdfast.views.terminal.screen import Page, draw

POLL_S: Final = 0.1
"""Interval at which the record is read: what happens is shown at once."""
DRAW_S: Final = 1.0
"""Interval at which numbers are shown again."""
PLAIN_POLL_S: Final = 0.5
ASK: Final = "stop after this step, with a checkpoint? y/n"
STOPPING: Final = "stop requested: the run ends after this step, with a checkpoint"


class Top:
    """A run on the screen.

    Args:
        listed: The run, in the list of runs.
        others: Line about other runs.
        console: Console to show it on.
    """

    def __init__(self, listed: Record, others: str, console: Console) -> None:
        self._listed = listed
        self._others = others
        self._console = console
        self._record = record_of(listed)
        self._look = look_of(console.encoding)
        self._page: Page = "run"
        self._note = ""
        self._is_asking = False
        self._drawn: list[Text] = []

    def show(self) -> None:
        """Show the run until a key or a signal ends that; the terminal is as before then."""
        screen = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        with (
            suppress(KeyboardInterrupt),
            signals_end(),
            keys_of(sys.stdin.fileno()) as keys,
            screen,
        ):
            self._loop(screen, keys)

    def _loop(self, screen: Live, keys: Keys) -> None:
        seen: tuple[object, ...] = ()
        drawn_at = 0.0
        has_ended = False
        while True:
            self._record.refresh()
            record = self._record
            now = time.monotonic()
            found = len(record.events), len(record.recoveries), record.result, self._console.size
            is_due = not has_ended and now - drawn_at >= DRAW_S
            if found != seen or is_due:
                seen = found
                drawn_at = now
                has_ended = self._draw(screen)
            hit = keys(POLL_S)
            for key in hit:
                if not self._take(key):
                    return
            if hit:
                seen = ()

    def _draw(self, screen: Live) -> bool:
        """Draw what has changed; returns whether the run has ended."""
        run = RunAt(record=self._record, now=time.time())
        if run.has_ended and not self._is_asking:
            self._note = ""
        size = self._console.width, self._console.height
        lines = draw(run, self._page, size, self._look, note=self._note, others=self._others)
        if lines != self._drawn:
            self._drawn = lines
            text = Text("\n", no_wrap=True, overflow="crop").join(lines)
            screen.update(text, refresh=True)
        return run.has_ended

    def _take(self, key: str) -> bool:
        """Do what a key asks for; returns whether the run is still shown."""
        if self._is_asking:
            self._is_asking = False
            self._note = ""
            if key == "y":
                self._stop()
            return True
        match key:
            case "q":
                return False
            case "s":
                self._is_asking = True
                self._note = ASK
            case "r":
                self._page = "run" if self._page == "report" else "report"
            case "e":
                self._page = "run" if self._page == "events" else "events"
            case _ if key == ESCAPE:
                self._page = "run"
                self._note = ""
        return True

    def _stop(self) -> None:
        try:
            self._listed.stop()
        except JobError as error:
            self._note = str(error)
        else:
            self._note = STOPPING


def follow(listed: Record, out: TextIO) -> None:
    """Print what happens in a run until it has ended, as lines.

    Args:
        listed: The run, in the list of runs.
        out: Output.
    """
    record = record_of(listed)
    lines = PlainLines()
    look = look_of(out.encoding)
    with suppress(KeyboardInterrupt):
        while True:
            record.refresh()
            run = RunAt(record=record, now=time.time())
            for line in lines.news(run):
                print(plain(line, look), file=out, flush=True)
            if run.has_ended:
                return
            time.sleep(PLAIN_POLL_S)


def record_of(listed: Record) -> RunRecord:
    """The record of a run.

    Raises:
        JobError: It has not begun.
    """
    if listed.is_waiting and not listed.directory.exists():
        raise JobError(f"{listed.id} waits to begin; holdfast logs -f {listed.id} says for what")
    return RunRecord(listed.directory)


ESCAPE: Final = "\x1b"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
"""Sequences that a terminal sends for keys such as the arrows."""
_MAX_READ: Final = 256

Keys = Callable[[float], str]
"""Waits that many seconds at most; returns the keys that were hit meanwhile."""


@contextmanager
def keys_of(fd: int) -> Iterator[Keys]:
    """While the block runs, keys are neither shown nor held back until the end of a line; the
    terminal is as before afterwards, however the block ends.

    Args:
        fd: A descriptor; if it is of no terminal, there are no keys.
    """
    if not os.isatty(fd):
        yield _no_keys
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda timeout_s: _read(fd, timeout_s)
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)


@contextmanager
def signals_end() -> Iterator[None]:
    """While the block runs, signals that end a process raise KeyboardInterrupt, once; the key that
    stops a process (Ctrl-Z) does nothing, as it would leave the terminal as it is.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    with handling(STOP_SIGNALS, end), handling([signal.SIGTSTP], signal.SIG_IGN):
        yield


def _no_keys(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""


def _read(fd: int, timeout_s: float) -> str:
    """Raises: KeyboardInterrupt: The terminal is gone."""
    if not select.select([fd], [], [], timeout_s)[0]:
        return ""
    read = os.read(fd, _MAX_READ)
    if not read:
        raise KeyboardInterrupt
    return _SEQUENCE.sub("", read.decode(errors="replace"))
