"""What a worker is told when it starts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from holdfast.job.spec import Job


class Launch(BaseModel):
    """One worker's orders, written by the engine and checked here.

    Attributes:
        job: What to do.
        rank: This worker's place among `job.workers`.
        generation: The membership that it belongs to.
        run_dir: The run's directory.
        attempt: Names this start of the run, hexadecimal, never used before.
        restore: Directories of checkpoints to restore from, the best first; empty starts anew.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Job
    rank: int
    generation: int
    run_dir: str
    attempt: str
    restore: tuple[str, ...]
