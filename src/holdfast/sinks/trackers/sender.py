"""Sender: sends what a run's files have to one tracker, in a thread of its own."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from holdfast.errors import JobError
from holdfast.linux.lock import locked
from holdfast.rundir import code_version, json_lines
from holdfast.rundir.run_directory import METRICS, run_id_of, search_of
from holdfast.sinks.trackers import spool
from holdfast.sinks.trackers.artifacts import Artifacts, status_of
from holdfast.sinks.trackers.spool import SpoolCursor
from holdfast.sinks.trackers.tracker import TrackedJob, TrackedRun, Tracker
from holdfast.strict import Strict

FOLDER: Final = "trackers"
"""Below the run directory: what was sent."""
POLL_S: Final = 5.0
"""Interval at which the files are read: libraries take most of their time per request."""
RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
"""The pause after a failure, and how long it grows."""
NICE: Final = 10
"""Priority of the threads and what they start: workers of the same host come first."""
_PACKAGES: Final = ("holdfast", "torch", "numpy")
"""Packages whose versions a tracker gets."""
_LOCK_TIMEOUT_S: Final = 0.1
_TICK_S: Final = 0.1
_LEAVE_S: Final = 0.5
"""Time for a thread that is given up to end what it has started."""


class Kept(Strict):
    """State of one tracker of one run, which is stored.

    Attributes:
        cursor: End of what was acknowledged.
        tracker: State of the tracker itself; see `Tracker.kept`.
        finished: True if it has got the end of the run, as of the newest attempt.
    """

    cursor: SpoolCursor = SpoolCursor()
    tracker: dict[str, Any] = Field(default_factory=dict)
    finished: bool = False


class Sender:
    """Feeds one tracker of one run.

    Args:
        tracker: The tracker.
        run_dir: The run's directory.
        job: The run's job.
        artifacts: The run's files, which all of its trackers share.

    Attributes:
        name: Name of the tracker.
        trouble: Why the newest attempt to send has failed; empty if it has not.
        progress_at: Time of the newest acknowledgement, monotonic seconds.
    """

    def __init__(
        self, tracker: Tracker, run_dir: Path, job: TrackedJob, artifacts: Artifacts
    ) -> None:
        self.name = tracker.name
        self.trouble = ""
        self.progress_at = time.monotonic()
        self._tracker = tracker
        self._run_dir = run_dir
        self._job = job
        self._artifacts = artifacts
        self._path = run_dir / FOLDER / f"{tracker.name}.json"
        self._kept = Kept()
        self._is_open = False
        self._ended = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tracker-{self.name}", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def end(self) -> None:
        """Note that the run has ended: what is left is sent, then the thread ends."""
        self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def has_sent_all(self) -> bool:
        """True if the tracker has got everything, the end of the run included."""
        return self._kept.finished

    def give_up(self) -> None:
        """Send no more."""
        self._given_up.set()
        self._ended.set()

    def unsent(self) -> str:
        """Name what is not sent, in words."""
        sent = max(0, self._kept.cursor.steps.step)
        step = max((line["step"] for line in json_lines.last(self._run_dir / METRICS)), default=0)
        return f"what came after step {sent} of {step}" if step > sent else "the end of the run"

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            while not self._given_up.is_set():
                try:
                    self._path.parent.mkdir(exist_ok=True)
                    with locked(self._path.with_suffix(".lock"), _LOCK_TIMEOUT_S):
                        self._send_all()
                        return
                except JobError:
                    self.trouble = "another process sends to it"
                except OSError as error:
                    self.trouble = _reason(error)
                self._given_up.wait(RETRY_S)
        finally:
            self._close()

    def _send_all(self) -> None:
        """Send until the run has ended and all is sent, or until it is given up."""
        self._kept = _read(self._path).model_copy(update={"finished": False})
        pause_s = RETRY_S
        while not self._given_up.is_set():
            is_last = self._ended.is_set()
            try:
                self._send_new()
                if is_last and not self._given_up.is_set():
                    self._finish()
                    return
            except Exception as error:  # noqa: BLE001  # whatever a library raises
                self.trouble = _reason(error)
                self._close()
                (self._given_up if is_last else self._ended).wait(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)
            else:
                self.trouble = ""
                pause_s = RETRY_S
                self._ended.wait(POLL_S)

    def _send_new(self) -> None:
        """Send what is in the files now."""
        if not self._is_open:
            run = TrackedRun(
                path=self._run_dir,
                run_id=run_id_of(self._run_dir),
                job=self._job,
                tags=_tags(self._run_dir),
            )
            if not self._tracker.open(run, self._kept.tracker):
                self._kept = Kept()  # it has lost what it had
            self._is_open = True
            self._keep()
        while not self._given_up.is_set():
            batch, cursor = spool.read(self._run_dir, self._kept.cursor, self._job)
            if cursor == self._kept.cursor:
                return
            if batch:
                self._tracker.send(batch)
            self._keep(cursor=cursor)

    def _finish(self) -> None:
        takes_files = self._tracker.takes_files
        files = self._artifacts.files(self._given_up) if takes_files else ()
        if not self._given_up.is_set():
            self._tracker.finish(status_of(self._run_dir), files)
            self._keep(finished=True)

    def _close(self) -> None:
        self._is_open = False
        with suppress(Exception):  # the library's own
            self._tracker.close()

    def _keep(self, **changes: Any) -> None:
        """Store what was acknowledged. A crash leaves the old content or the new."""
        update = {"tracker": dict(self._tracker.kept), **changes}
        self._kept = self._kept.model_copy(update=update)
        draft = self._path.with_suffix(".tmp")
        draft.write_text(self._kept.model_dump_json(), encoding="utf-8")
        draft.replace(self._path)
        self.progress_at = time.monotonic()


def deliver(senders: Sequence[Sender], is_late: Callable[[Sender], bool]) -> list[str]:
    """Wait until all is sent after the end of a run, or until `is_late` says so of what is not.

    Returns:
        What was not sent, a line per tracker.
    """
    for sender in senders:
        sender.end()
    unsent = []
    for sender in senders:
        while not sender.wait(_TICK_S) and not is_late(sender):
            pass
        sender.give_up()
        sender.wait(_LEAVE_S)
        if not sender.has_sent_all:
            reason = f" ({sender.trouble})" if sender.trouble else ""
            unsent.append(f"{sender.name} has not got {sender.unsent()}{reason}")
    return unsent


def _tags(run_dir: Path) -> dict[str, str]:
    """Facts that the results of a run may depend on besides its parameters."""
    tags = {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "run_dir": str(run_dir.resolve()),
        "version.python": platform.python_version(),
    }
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            tags[f"version.{name}"] = metadata.version(name)
    if commit := code_version.kept(run_dir).commit:
        tags["git.commit"] = commit
    if search := search_of(run_dir):
        tags["search"] = search
    return tags


def _read(path: Path) -> Kept:
    try:
        return Kept.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):  # of another version: trackers ask what they have
        return Kept()


def _reason(error: Exception) -> str:
    """Kind of an error, without its text, which may hold an address or a secret."""
    details = (
        getattr(error, "error_code", None),
        getattr(getattr(error, "response", None), "status_code", None),
        getattr(error, "strerror", None),
    )
    return ", ".join(map(str, filter(None, (type(error).__name__, *details))))
