"""Needs: what a job asks of each of its hosts, as far as it is known before a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from holdfast.doctor.finding import Finding, advice, ok
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.launch.environment import left_out

LEAST_DESCRIPTORS: Final = 64
"""Descriptors of the command, the coordinator and the fork server."""
DESCRIPTORS_PER_WORKER: Final = 24
"""That the agent holds for each worker, and the worker for its host."""
DESCRIPTORS_PER_HOST: Final = 16
"""That a worker or the coordinator holds for each other host."""
LEAST_TASKS: Final = 64
"""Threads of the command, the coordinator, the agent and the fork server."""
TASKS_PER_WORKER: Final = 8
"""Threads of a worker that are not its kernels' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """Needs of a job on this host.

    Attributes:
        job: The job, with numbers.
        workers: Workers of this host.
        run_dir: Place of its run directory.
        ports: Ports at which this host must be able to listen, and their purposes.
        is_first: True if the code of the job's task is here: other hosts get it from the first.
    """

    job: TrainJob
    workers: int
    run_dir: Path
    ports: dict[int, str]
    is_first: bool = True

    @classmethod
    def of(cls, request: TrainRequest, cores: int, run_dir: Path, ports: dict[int, str]) -> Self:
        """Needs of a request on one of its hosts.

        Args:
            request: The job.
            cores: Cores of this host: as many workers as `workers=auto` starts at most.
            run_dir, ports: See the class.

        Raises:
            JobError: The job contradicts itself.
        """
        if request.workers == AUTO:
            request = request.model_copy(update={"workers": cores})
        job = request.resolved()
        if job.port:
            ports = {**ports, job.port: "the rendezvous of sync=ddp (port)"}
        workers = job.workers_per_host
        return cls(job=job, workers=workers, run_dir=run_dir, ports=ports)

    @property
    def cores_per_worker(self) -> int:
        """Cores that a worker is to have."""
        return max(self.job.threads_per_worker, self.job.resources.cpus)

    @property
    def memory_bytes(self) -> int:
        """Memory that the job asks for by `resources.memory`."""
        return self.workers * self.job.resources.memory_bytes

    @property
    def descriptors(self) -> int:
        """File descriptors that one process may hold."""
        others = DESCRIPTORS_PER_HOST * (self.job.most_hosts - 1)
        return LEAST_DESCRIPTORS + DESCRIPTORS_PER_WORKER * self.workers + others

    @property
    def tasks(self) -> int:
        """Processes and threads of all kinds."""
        own = self.job.threads_per_worker + TASKS_PER_WORKER + self.job.loader.workers
        return LEAST_TASKS + own * self.workers


def variables(env: Mapping[str, str]) -> Finding:
    """Check that the job sets the variables of NCCL and gloo that this shell has.

    Args:
        env: Variables that the job sets.
    """
    unset = left_out(os.environ, env)
    if unset:
        shown = " ".join(f"env.{name}={os.environ[name]}" for name in unset)
        return advice(
            "environment",
            f"{', '.join(unset)} of this shell do not reach the workers",
            f"set them in the job, so that all hosts have the same: {shown}",
        )
    return ok("environment", ", ".join(env) or "no variables in the job")
