"""Trackers: feeds the trackers of a run, from its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast.job.spec import Job
from holdfast.record.sink import Ending, Sink
from holdfast.sinks.trackers.choose import senders
from holdfast.sinks.trackers.sender import deliver
from holdfast.wire.rpc import RunStateMessage

DEADLINE_S: Final = 10.0
"""Most time that the end of a run waits for its trackers, seconds."""


class Trackers(Sink):
    """Starts a sender for each tracker of a job, and waits for them at the end.

    Args:
        job: Names the trackers.
        environment: The command's.
        run_dir: The run's directory.
        tell: Called with a line for people.

    Raises:
        JobError: A library is not installed, or a setting is missing.
    """

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str],
        run_dir: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._senders, self._artifacts = senders(job, run_dir, environment)
        self._run_dir = run_dir
        self._tell = tell
        self._is_started = False
        self._in_trouble = set[str]()

    def on_progress(self, _: RunStateMessage) -> None:
        """Start with the run, and report a tracker that cannot be reached."""
        self._start()
        for sender in self._senders:
            if not sender.trouble:
                self._in_trouble.discard(sender.name)
            elif sender.name not in self._in_trouble:
                self._in_trouble.add(sender.name)
                self._tell(
                    f"holdfast: {sender.name} does not take what is sent ({sender.trouble}); the "
                    "run continues, and it is sent once it does"
                )

    def close(self, ending: Ending | None) -> None:
        """Wait until everything is sent or too late."""
        if ending is None:
            for sender in self._senders:
                sender.give_up()
            return
        self._start()
        deadline = time.monotonic() + DEADLINE_S
        unsent = deliver(self._senders, lambda _: time.monotonic() > deadline)
        for line in unsent:
            self._tell(f"holdfast: {line}; send it later with: holdfast track {self._run_dir}")
        if not unsent:
            self._artifacts.remove()

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            for sender in self._senders:
                sender.start()
