"""Parameters that an agent passes at its start to a process that it has forked."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.core.placement.shares import Share
from holdfast.job.settings import CheckpointSettings
from holdfast.job.spec import Job
from holdfast.job.train_job import TrainJob
from holdfast.strict import Strict
from holdfast.wire.tls import Credentials

SHARES: Final = TypeAdapter(tuple[Share, ...])
"""Shares of workers as JSON."""


class WriterSpec(Strict):
    """Work of a host's writer.

    Attributes:
        run_dir: The run's directory.
        settings: Name the files of keys.
        retention: Says which checkpoints are kept.
        where: Name of the host in an event, if there are several.
    """

    kind: Literal["writer"] = "writer"
    run_dir: str
    settings: CheckpointSettings
    retention: RetentionPolicy
    where: dict[str, str] = Field(default_factory=dict)


class WorkerSpec(Strict):
    """Work of one worker.

    Attributes:
        job: The job.
        rank: The worker's rank among `job.workers`.
        slot: Its number among the workers of its host, from 0, which no other one has meanwhile.
        run_dir: The run's directory.
        attempt: The id of this start of the run, hexadecimal, never used before.
        interface: The address on which it accepts workers of other hosts; empty if there are none.
        credentials: Credentials that it shows to those; None if they talk in plain.
        tunnel: The address of its agent's tunnel for process groups; empty if there is none.
        share: Share of its host that it may use; None: all of it.
        score: TFLOPS of its device by profile; 0 if it is not known.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    kind: Literal["worker"] = "worker"
    job: Job
    rank: int
    slot: int
    run_dir: str
    attempt: str
    interface: str = ""
    credentials: Credentials | None = None
    tunnel: str = ""
    share: Share | None = None
    score: float = 0.0

    @property
    def train_job(self) -> TrainJob:
        """The job, in code that only workers of a training job reach."""
        assert isinstance(self.job, TrainJob)
        return self.job


ForkSpec = Annotated[WorkerSpec | WriterSpec, Field(discriminator="kind")]
FORK_SPEC: Final = TypeAdapter[WorkerSpec | WriterSpec](ForkSpec)
"""Either of them as JSON."""
