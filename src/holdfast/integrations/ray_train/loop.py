"""Train loop: what each worker of Ray Train runs; rank 0 supervises the run."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
import ray.train
from pyarrow.fs import LocalFileSystem
from ray.train import Checkpoint
from ray.train.collective import broadcast_from_rank_zero
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from holdfast.api.attended import Attendance
from holdfast.api.train import request_of, run_job
from holdfast.checkpoint.find import find_checkpoint
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import newest_described, pieces, receive
from holdfast.clusters.engines.ray.cluster import own_address
from holdfast.errors import CheckpointError, JobError
from holdfast.integrations.ray_train.board import Board, Return, TakePart
from holdfast.integrations.ray_train.places import TrainPlaces
from holdfast.integrations.ray_train.reports import Reporter
from holdfast.integrations.ray_train.worker import follow_orders
from holdfast.job import JOB_FILE
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainRequest
from holdfast.rundir.run_directory import state_dir
from holdfast.runs.hosts.endpoint import Endpoint, free_port
from holdfast.runs.hosts.placement import Placement
from holdfast.tasks import code


def train_loop(
    task: str | Callable[..., Any], job: Mapping[str, Any] | TrainRequest | None = None
) -> Callable[[], dict[str, Any] | None]:
    """The training loop of a TorchTrainer that trains a job of holdfast.

    Each worker of Ray Train holds the place of one agent, so `ScalingConfig(num_workers=…)` is what
    `hosts` is elsewhere. The job's `workers` is the number of training processes, over all of them;
    by default one for each worker of Ray Train.

    Args:
        task: See `holdfast.train`. Its code is sent to all hosts.
        job: Keys of the job, or a complete :class:`Job`; see `holdfast.train`.

    Returns:
        What `TorchTrainer(…)` takes. Ray's `Result` then has the metrics of the newest checkpoint,
        and as its `return_value` what `holdfast train --json` prints.

    Raises:
        JobError: The job is not valid.

    Example::

        trainer = TorchTrainer(
            train_loop("digits", {"epochs": 3}),
            scaling_config=ScalingConfig(num_workers=3),
            run_config=RunConfig(failure_config=FailureConfig(max_failures=2)),
        )
        weights = state_dict(trainer.fit().checkpoint)
    """
    request, by_value = request_of(task, job)
    if by_value is not None:
        raise JobError(
            "the task is defined in this program, so other hosts cannot import it; put it into a "
            "file of its own and import it from there"
        )
    if request.workers == AUTO:
        raise JobError("workers=auto measures one host; with Ray Train, give a number of workers")
    given = isinstance(job, TrainRequest) or "workers" in (job or {})
    return _Loop(
        request=request,
        workers=request.workers if given else None,
        packed=code.pack(request.resolved().code_reference, None),
        key=secrets.token_hex(4),
    )


def state_dict(checkpoint: Checkpoint, of: str | None = None) -> dict[str, Any]:
    """The weights in a checkpoint of Ray Train, verified: what `load_state_dict` of a model takes.

    Args:
        checkpoint: Checkpoint of Ray's `Result`.
        of: Name of a registered module, such as an average, or of one of several models.

    Raises:
        CheckpointError: The checkpoint is damaged.
        JobError: It is not one of holdfast, or has nothing called `of`.
    """
    from holdfast.checkpoint.exports import weights  # imports torch

    with checkpoint.as_directory() as folder:
        return weights.read_checkpoint(find_checkpoint(Path(folder)), of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """Function that each worker of Ray Train runs.

    Attributes:
        request: The job.
        workers: Training processes; None for one for each worker of Ray Train.
        packed: The code of its task; see `tasks.code`.
        key: Names the run directory.
    """

    request: TrainRequest
    workers: int | None
    packed: bytes
    key: str

    def __call__(self) -> dict[str, Any] | None:
        context = ray.train.get_context()
        rank = context.get_world_rank()
        size = context.get_world_size()
        board = broadcast_from_rank_zero(_make_board(size) if rank == 0 else None)
        if rank > 0:
            follow_orders(board, rank)
            return None
        own_agent = threading.Thread(target=follow_orders, args=[board, 0], daemon=True)
        own_agent.start()
        try:
            return self._lead(board, size)
        finally:
            ray.get([board.order.remote(each, Return()) for each in range(size)])
            own_agent.join()

    def _lead(self, board: Any, size: int) -> dict[str, Any]:
        """Supervise the run, in rank 0."""
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, for this process; the job has its own key
        run_dir = run_directory(self.key)
        if checkpoint := ray.train.get_checkpoint():
            bring(checkpoint, run_dir)
        resume = (run_dir / JOB_FILE).exists()
        run_dir.mkdir(parents=True, exist_ok=True)
        code.unpack(self.packed, run_dir)
        request = self.request.model_copy(
            update={"hosts": size, "workers": self.workers or size},
        )
        others = range(1, size)
        reporter = Reporter(
            run_dir, lambda: ray.get([board.order.remote(each, TakePart()) for each in others])
        )
        with closing(TrainPlaces(board, size)) as engine:
            endpoint = Endpoint(address=own_address(), port=free_port())
            try:
                result = run_job(
                    request,
                    run_dir=run_dir,
                    resume=resume,
                    placement=Placement(engine=engine, endpoint=endpoint),
                    attendance=Attendance(on_event=reporter.on_event),
                )
            except BaseException:
                reporter.abandon()
                raise
        reporter.finish()
        return result.as_dict()


def _make_board(workers: int) -> Any:
    """A board for so many workers, on this node."""
    node = ray.get_runtime_context().get_node_id()
    on_this_node = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(Board).options(num_cpus=0, scheduling_strategy=on_this_node).remote(workers)


FOLDER: Final = "holdfast"
"""The run directory, in the folder that Ray Train keeps of a run."""
_ATTEMPT: Final = "f"
"""Names the draft: nothing else writes to the directory yet."""


def run_directory(key: str) -> Path:
    """The run directory, the same for each attempt where that is possible.

    It is next to the checkpoints of Ray Train if those are in a file system, which is the same for
    all hosts; else on this host.

    Args:
        key: Key of the run, for a directory on this host.
    """
    context = ray.train.get_context()
    storage = context.get_storage()
    if isinstance(storage.storage_filesystem, LocalFileSystem):
        return Path(storage.experiment_fs_path) / FOLDER
    return state_dir() / "ray-train" / f"{context.get_experiment_name()}-{key}"


def bring(checkpoint: Checkpoint, run_dir: Path) -> None:
    """Have a run directory that is at least as new as the checkpoint that Ray Train has.

    Args:
        checkpoint: Checkpoint that Ray Train has.
        run_dir: The run's directory, which may not exist yet.

    Raises:
        CheckpointError: The checkpoint of Ray Train is damaged, or is not one of holdfast.
        OSError: The disk is full, say.
    """
    with checkpoint.as_directory() as folder:
        theirs = CheckpointStore.of_run(Path(folder))
        ours = CheckpointStore.of_run(run_dir)
        wanted = newest_described(theirs) if (Path(folder) / JOB_FILE).exists() else None
        if wanted is None:
            raise CheckpointError(
                f"{checkpoint.path} is no checkpoint of holdfast; give RunConfig another name"
            )
        own = None
        with suppress(FileNotFoundError):
            own = ours.newest()
        if own is None or own.step < wanted.step:
            (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
            receive(ours, _ATTEMPT, pieces(theirs, wanted), wanted)
        if not (run_dir / JOB_FILE).exists():  # last: with it, there is a run to resume
            shutil.copyfile(Path(folder) / JOB_FILE, run_dir / JOB_FILE)
