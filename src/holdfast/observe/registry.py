"""Registry: which runs this user has started on this host, so that any shell finds them again.

    ~/.local/state/holdfast/runs/HOST/ID/
      record.json     directory, job, engine
      output.log, errors.log   what a command without a terminal has printed

How a run is doing is never stored: it is asked for.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.errors import JobError
from holdfast.job.load import JOB_FILE
from holdfast.linux.files import replace_synced
from holdfast.linux.process import Process
from holdfast.observe import lines
from holdfast.observe.run_dir import EVENTS, METRICS, is_held, state_dir

_RECORD: Final = "record.json"
_ENDS: Final = {"run-ended": "", "run-failed": "failed"}


class Record(BaseModel):
    """A run that was started.

    Attributes:
        id: Names it among the user's runs on this host.
        directory: Its run directory, absolute.
        job: The name of its job.
        engine: What places its agents; `local` for this host.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    directory: Path
    job: str
    engine: str

    @property
    def folder(self) -> Path:
        """Where the registry keeps what belongs to the run."""
        return _folder() / self.id

    def state(self) -> str:
        """How it is: `running`, `finished`, `stopped`, `failed`, or `lost` if its process died."""
        if is_held(self.directory):
            return "running"
        entries = lines.read(self.directory / EVENTS)
        last = None
        for entry in entries:
            if entry["event"] in (*_ENDS, "run-started"):
                last = entry
        if last is None or last["event"] == "run-started":
            return "lost"
        was_asked = last.get("error") == "Interrupted"
        return str(last.get("status", "")) or ("stopped" if was_asked else _ENDS[last["event"]])

    def steps(self) -> int:
        """How many steps are committed, as far as this host knows."""
        newest = lines.last(self.directory / METRICS)
        return max(
            (each["step"] for each in newest if isinstance(each.get("step"), int)), default=0
        )

    def process(self) -> Process | None:
        """The process that supervises it; None if it has ended."""
        started = [
            entry
            for entry in lines.read(self.directory / EVENTS)
            if entry["event"] == "run-started"
        ]
        if not (started and is_held(self.directory)):
            return None
        return Process.logged(started[-1]["pid"], started[-1]["time_unix_s"])


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
    replace_synced(record.folder / _RECORD, record.model_dump_json().encode())
    return record


def forget(record: Record) -> None:
    """Forget a run that has left no directory."""
    shutil.rmtree(record.folder, ignore_errors=True)


def records() -> Iterator[Record]:
    """The runs whose directories are there, newest first. A disk that is away may come back."""
    folders = _folder().glob(f"*/{_RECORD}")
    for path in sorted(folders, key=lambda each: each.stat().st_mtime, reverse=True):
        record = _read(path.parent)
        if record is not None and (record.directory / JOB_FILE).exists():
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
    if (path / JOB_FILE).exists():
        return Record(id=path.name, directory=path.resolve(), job=path.name, engine="local")
    raise JobError(f"no run {run!r}; holdfast runs lists those of this host")


def _read(folder: Path) -> Record | None:
    with suppress(OSError, ValidationError):
        return Record.model_validate_json((folder / _RECORD).read_bytes())
    return None


def _folder() -> Path:
    return state_dir() / "runs" / socket.gethostname()  # hosts may share a home
