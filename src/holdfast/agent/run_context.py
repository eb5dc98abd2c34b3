"""Run context: the run that an agent works for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.agent.tunnel import Tunnel
from holdfast.core.failures import memory_advice
from holdfast.core.placement.shares import Share
from holdfast.core.protocol import Failure
from holdfast.hardware.profile import Device
from holdfast.job.spec import Job
from holdfast.job.train_job import TrainJob
from holdfast.wire.tls import Credentials
from holdfast.wire.worker_spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that an agent works for.

    Attributes:
        host: The agent's name.
        node: Defined in `StatusMessage`.
        job: The job.
        directory: The run's directory.
        attempt: The id of this start of the run, hexadecimal.
        interface: The address on which its workers accept those of other hosts; empty if there are
            none.
        credentials: Credentials that they show to each other; None if they talk in plain.
        tunnel: Carries the connections of their process groups, if it is needed.
        shares: Share of each of its workers; none: all of this host.
        devices: Devices that its workers use in turn, in the order of slots; none: not known.
    """

    host: str
    job: Job
    directory: Path
    attempt: str
    node: str = ""
    interface: str = ""
    credentials: Credentials | None = None
    tunnel: Tunnel | None = None
    shares: tuple[Share, ...] = ()
    devices: tuple[Device, ...] = ()

    @property
    def capacity(self) -> int:
        """Number of workers that one host runs."""
        return self.job.workers_per_host

    @property
    def where(self) -> dict[str, str]:
        """Name of this host in an event of a run on several hosts."""
        return {"host": self.host} if self.interface else {}

    @property
    def memory_advice(self) -> str:
        """Remedies for a worker that runs out of memory."""
        shards = self.job.movable_shards
        batch = self.job.batch if isinstance(self.job, TrainJob) else 0
        return memory_advice(batch, shards)

    def with_host(self, failure: Failure) -> Failure:
        """A failure that may be due to this host, such as data that are absent, with its name."""
        is_of_host = failure.fatal or failure.repeatable or failure.cap is not None
        if not self.interface or not is_of_host:
            return failure
        return replace(failure, cause=f"{failure.cause} (host {self.host})")

    def worker_spec(self, rank: int, slot: int) -> WorkerSpec:
        """Start parameters of a worker in a slot that no other worker of this host uses."""
        return WorkerSpec(
            job=self.job,
            rank=rank,
            slot=slot,
            run_dir=str(self.directory.resolve()),
            attempt=self.attempt,
            interface=self.interface,
            credentials=self.credentials,
            tunnel=self.tunnel.address if self.tunnel else "",
            share=self.shares[slot] if self.shares else None,
            score=self._score(slot),
        )

    def _score(self, slot: int) -> float:
        """The score of the device that a worker chooses (`worker.devices.choose_device`)."""
        if not self.devices or not isinstance(self.job, TrainJob):
            return 0.0
        return self.devices[slot % len(self.devices)].score_in(self.job.precision)
