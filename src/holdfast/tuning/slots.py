"""Slots: the processes that run the trials of a search, as the search has them; see `slot`."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

END_TIMEOUT_S: Final = 30.0
"""How long a slot that has nothing to do may take to end."""


class Slot:
    """A process that runs one trial at a time.

    Args:
        log: File for what its runs print.

    Attributes:
        trial: Number of the trial that it runs; None if it has none.
    """

    def __init__(self, log: Path) -> None:
        self.trial: int | None = None
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.tuning.slot", "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._unread = b""

    @property
    def output(self) -> int:
        """The descriptor on which it answers."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def run(self, trial: int, job: dict[str, Any], run_dir: Path, *, resume: bool) -> None:
        """Begin a trial, or continue it."""
        self.trial = trial
        self._order(trial=trial, job=job, run_dir=str(run_dir), resume=resume)

    def stop(self) -> None:
        """End its trial after the current step, with a checkpoint."""
        self._order(stop=self.trial)

    def answer(self) -> dict[str, Any] | None:
        """Read a part of what it says: the answer to its order, if that is whole.

        Raises:
            EOFError: The process has ended.
        """
        piece = os.read(self.output, 1 << 16)
        if not piece:
            raise EOFError
        self._unread += piece
        if not self._unread.endswith(b"\n"):
            return None
        line, self._unread = self._unread, b""
        self.trial = None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, *, at_once: bool) -> None:
        """End the process, and with it all that it has started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        if at_once:
            self._process.kill()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _order(self, **order: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which `answer` says
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()


class Slots:
    """The slots of a search: one per trial that runs at the same time, and begun when needed.

    Args:
        size: Most of them.
        logs: Directory for their logs.
    """

    def __init__(self, size: int, logs: Path) -> None:
        self._size = size
        self._logs = logs
        self._slots: dict[int, Slot] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._slots.values():
            slot.close(at_once=slot.trial is not None)

    @property
    def trials(self) -> set[int]:
        """Numbers of the trials that run."""
        return {slot.trial for slot in self._slots.values() if slot.trial is not None}

    @property
    def has_free(self) -> bool:
        """True if another trial can be run."""
        return len(self.trials) < self._size

    def take(self) -> Slot:
        """A slot without a trial."""
        for number in range(self._size):
            slot = self._slots.get(number)
            if slot is None:
                slot = self._slots[number] = Slot(self._logs / f"slot-{number}.log")
            if slot.trial is None:
                return slot
        raise AssertionError("has_free is asked first")

    def stop(self, trial: int) -> None:
        """End a trial after its current step, with a checkpoint."""
        for slot in self._slots.values():
            if slot.trial == trial:
                slot.stop()

    def answers(self, timeout_s: float) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """The trials that have come to an end within this time, each with its answer; None for one
        whose slot has died.
        """
        with selectors.DefaultSelector() as selector:
            for number, slot in self._slots.items():
                selector.register(slot.output, selectors.EVENT_READ, number)
            for key, _ in selector.select(timeout_s):
                slot = self._slots[key.data]
                trial = slot.trial
                try:
                    answer = slot.answer()
                except EOFError:
                    slot.close(at_once=True)
                    del self._slots[key.data]
                    if trial is not None:
                        yield trial, None
                    continue
                if answer is not None and trial is not None:
                    yield trial, answer
