"""Run context: the run that an agent works for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.job.spec import Job
from holdfast.wire.tls import Credentials
from holdfast.wire.worker_spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that an agent works for.

    Attributes:
        job: The job.
        directory: The run's directory.
        attempt: The id of this start of the run, hexadecimal.
        interface: The address on which its workers accept those of other hosts; empty if there are
            none.
        credentials: What they show to each other; None if they talk in plain.
    """

    job: Job
    directory: Path
    attempt: str
    interface: str = ""
    credentials: Credentials | None = None

    @property
    def capacity(self) -> int:
        """How many workers one host runs."""
        return -(-self.job.workers // self.job.hosts)

    def worker_spec(self, rank: int) -> WorkerSpec:
        """What a worker is started with."""
        return WorkerSpec(
            job=self.job,
            rank=rank,
            run_dir=str(self.directory.resolve()),
            attempt=self.attempt,
            interface=self.interface,
            credentials=self.credentials,
        )
