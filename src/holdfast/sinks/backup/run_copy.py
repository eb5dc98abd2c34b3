"""RunCopy: what is in the backup of a run besides its checkpoints.

    s3://bucket/prefix/digits-8c1f…/        named by the job and the run's id
      run.id, job.yaml                      as in the run directory
      code.zip                              the sources of the task, if it has any
      events.jsonl/000000, …                logs, in segments of 16 MiB
      checkpoints/                          see checkpoint.backup

Of a log that has grown, only the segments that have changed are written again.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from holdfast.checkpoint.remote.objects import Objects
from holdfast.errors import JobError, ProtocolError
from holdfast.job import JOB_FILE, load
from holdfast.job.spec import Job
from holdfast.rundir.run_directory import ARCHIVE, EVENTS, ID, METRICS, RECOVERIES, run_id_of
from holdfast.tasks import code

LOGS: Final = (METRICS, EVENTS, RECOVERIES)
_SEGMENT_BYTES: Final = 16 << 20


def name_of(job: str, run_dir: Path) -> str:
    """The folder in a store of a run of the job with this name."""
    return f"{job}-{run_id_of(run_dir)}"


class RunCopy:
    """The files of one run in a store. Every method raises OSError if one cannot be used.

    Args:
        objects: The store, at the folder of the run.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._written: dict[str, bytes] = {}  # digests of segments

    def has_job(self) -> bool:
        """True if what does not change while a run trains was copied, and is still there."""
        return all(self._objects.size(name) is not None for name in (JOB_FILE, ID))

    def forget(self) -> None:
        """Copy all of the logs the next time: the store has lost what was copied."""
        self._written.clear()

    def write_job(self, run_dir: Path, reference: str) -> None:
        """Copy what does not change while a run trains; the id last, which `has_job` looks for.

        Args:
            run_dir: The run's directory.
            reference: Code of its job; see `TrainJob.code_reference`.
        """
        packed = None
        with suppress(JobError):  # no file holds it: the program that resumes must have it
            packed = code.pack(reference, run_dir)
        if packed:
            self._objects.put(ARCHIVE, packed)
        self._objects.put(JOB_FILE, (run_dir / JOB_FILE).read_bytes())
        self._objects.put(ID, run_id_of(run_dir).encode())

    def write_logs(self, run_dir: Path) -> None:
        """Copy what has been appended to the logs."""
        for file in LOGS:
            if (run_dir / file).exists():
                with (run_dir / file).open("rb") as log:
                    for number in count():
                        segment = log.read(_SEGMENT_BYTES)
                        self._write(f"{file}/{number:06d}", segment)
                        if len(segment) < _SEGMENT_BYTES:
                            break

    def job(self) -> Job:
        """The job of the run.

        Raises:
            JobError: This version cannot read it.
            FileNotFoundError: There is none.
        """
        where = f"{self._objects.url}/{JOB_FILE}"
        text = self._objects.get(JOB_FILE).decode("utf-8", errors="replace")
        return load.of_text(text, where)

    def read(self, run_dir: Path) -> None:
        """Make the files those of a new run directory.

        Raises:
            JobError: The sources are damaged.
        """
        for name in (ID, JOB_FILE):
            (run_dir / name).write_bytes(self._objects.get(name))
        try:
            code.unpack(self._objects.get(ARCHIVE), run_dir)
        except FileNotFoundError:
            pass
        except ProtocolError as error:
            raise JobError(f"{self._objects.url}/{ARCHIVE} is damaged: {error}") from None
        for file in LOGS:
            self._read_log(file, run_dir / file)

    def _write(self, name: str, segment: bytes) -> None:
        digest = hashlib.blake2b(segment).digest()
        if self._written.get(name) != digest:
            self._objects.put(name, segment)
            self._written[name] = digest

    def _read_log(self, file: str, path: Path) -> None:
        """Read a log up to its first segment that is not full."""
        for number in count():
            try:
                segment = self._objects.get(f"{file}/{number:06d}")
            except FileNotFoundError:
                return
            with path.open("ab") as log:
                log.write(segment)
            if len(segment) < _SEGMENT_BYTES:
                return
