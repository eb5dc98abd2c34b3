"""Registry: which runs this user has started on this host, so that any shell finds them again.

    ~/.local/state/holdfast/runs/HOST/ID/
      record.json     directory, job, engine
      output.log, errors.log   what a command without a terminal has printed
      waiting.pid     the process of a run that waits to begin
      waiting.lock    locked by that process

How a run is doing is never stored: it is asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import JobError
from holdfast.job import JOB_FILE, load
from holdfast.linux.files import replace_synced
from holdfast.linux.lifeline import LEAVE
from holdfast.linux.lock import locked
from holdfast.linux.process import Process
from holdfast.record.moments import is_event
from holdfast.record.state import RunState, StateName
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, holder_of, is_held, is_held_here, state_dir

if TYPE_CHECKING:
    from holdfast.record.views.brief import Brief

_RECORD: Final = "record.json"
_WAITING_PID: Final = "waiting.pid"
_WAITING_LOCK: Final = "waiting.lock"
_LOCK_TIMEOUT_S: Final = 2.0
SIGNALS_APART_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run that was started.

    Attributes:
        id: Names it among the user's runs on this host.
        directory: Its run directory, absolute.
        job: The name of its job.
        engine: Engine that places its agents; `local` for this host.
    """

    id: str
    directory: Path
    job: str
    engine: str

    @property
    def folder(self) -> Path:
        """Directory in which the registry keeps what belongs to the run."""
        return _folder() / self.id

    @property
    def is_waiting(self) -> bool:
        """True if it waits to begin."""
        return self._waiting_pid() != 0

    @property
    def is_active(self) -> bool:
        """True if a process on this host runs it, or waits to."""
        return self.is_waiting or is_held(self.directory)

    def brief(self) -> Brief:
        """State of the run."""
        from holdfast.record.views.brief import Brief, brief_of  # not to add a run to the list

        if self.is_waiting:
            return Brief(state=RunState(name=StateName.WAITING))
        return brief_of(self.directory)

    def process(self) -> Process | None:
        """The process that supervises it; None if it has ended, or is on another host."""
        if pid := self._waiting_pid():
            with suppress(ProcessLookupError):
                process = Process(pid, os.pidfd_open(pid))
                if self._waiting_pid() == pid:  # so it is that process
                    return process
        started = [
            entry
            for entry in json_lines.read(self.directory / EVENTS)
            if is_event(entry) and entry["event"] == "run-started"
        ]
        if not (started and is_held_here(self.directory)):
            return None
        return Process.logged(started[-1]["pid"], started[-1]["time_unix_s"])

    def stop(self, *, at_once: bool = False) -> Process:
        """Ask it to end after the current step, with a checkpoint; returns the process that ends
        with it.

        Args:
            at_once: True if it ends at once instead, without a checkpoint.

        Raises:
            JobError: It is not running on this host.
        """
        process = self.process()
        if process is None:
            state = self.brief().state.name
            raise JobError(
                f"{self.id} is not running on this host: it is {state}; if another host runs it, "
                "use holdfast stop there"
            )
        for number in range(1 + at_once):
            if number:
                time.sleep(SIGNALS_APART_S)  # two signals at once count as one
            process.send(signal.SIGTERM)
        return process

    def leave(self) -> Process:
        """Ask the command that works for it on this host to leave; returns its process.

        Raises:
            JobError: There is none, or the run has no other host.
        """
        if (first := self.process()) is not None:
            if load.of_run(self.directory).most_hosts == 1:
                raise JobError(f"{self.id} runs on this host alone; `holdfast stop` ends it")
            first.send(LEAVE)
            return first
        pid = holder_of(self.directory)
        with suppress(ProcessLookupError):
            process = Process(pid, os.pidfd_open(pid)) if pid else None
            if process is not None and holder_of(self.directory) == pid:  # so it is that process
                process.send(signal.SIGTERM)
                return process
        raise JobError(f"no agent of this host works for {self.id}")

    def _waiting_pid(self) -> int:
        """The process of a run that waits to begin; 0 if it does not."""
        with suppress(OSError, ValueError), (self.folder / _WAITING_LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int((self.folder / _WAITING_PID).read_text(encoding="ascii"))
        return 0


def add(directory: Path, job: str, engine: str) -> Record:
    """Record a run; one that is recorded keeps its id.

    Raises:
        OSError: It cannot be written.
    """
    path = directory.resolve()
    name = path.name
    known = _read(_folder() / name)
    if known is not None and known.directory != path and known.directory.exists():
        name = f"{name}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"
    record = Record(id=name, directory=path, job=job, engine=engine)
    record.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_synced(
        record.folder / _RECORD, json.dumps({**asdict(record), "directory": str(path)}).encode()
    )
    return record


@contextmanager
def waiting(directory: Path, job: str, engine: str) -> Iterator[None]:
    """While the block runs, a run is listed as one that waits to begin.

    Raises:
        JobError: Another one waits to begin in the same directory.
    """
    try:
        record = add(directory, job, engine)
    except OSError:  # no run ends because of a list
        yield
        return
    try:
        with locked(record.folder / _WAITING_LOCK, _LOCK_TIMEOUT_S):
            path = record.folder / _WAITING_PID
            path.write_text(str(os.getpid()), encoding="ascii")
            yield
    except BaseException:
        if not directory.exists():
            forget(record)
        raise


def forget(record: Record) -> None:
    """Forget a run that has left no directory."""
    shutil.rmtree(record.folder, ignore_errors=True)


def records() -> Iterator[Record]:
    """The runs that wait, and those whose directories are there, newest first. A disk that is away
    may come back.
    """
    folders = _folder().glob(f"*/{_RECORD}")
    for path in sorted(folders, key=lambda each: each.stat().st_mtime, reverse=True):
        record = _read(path.parent)
        if record is not None and ((record.directory / JOB_FILE).exists() or record.is_waiting):
            yield record


def find(run: str) -> Record:
    """The run with an id, or in a directory.

    Raises:
        JobError: There is none.
    """
    path = Path(run)
    for record in records():
        if record.id == run or record.directory == path.resolve():
            return record
    if any((path / name).exists() for name in (JOB_FILE, EVENTS)):
        path = path.resolve()
        return Record(id=path.name, directory=path, job=path.name, engine="local")
    raise JobError(f"no run {run!r}; holdfast runs lists those of this host")


def _read(folder: Path) -> Record | None:
    with suppress(OSError, ValueError, KeyError, TypeError):  # torn, or of another version
        fields = json.loads((folder / _RECORD).read_bytes())
        return Record(**{**fields, "directory": Path(fields["directory"])})
    return None


def _folder() -> Path:
    return state_dir() / "runs" / socket.gethostname()  # hosts may share a home
