"""A worker that runs a script: one that `torchrun` could run, as it is.

    stand still ─▶ rendezvous ─▶ the environment of torchrun ─▶ the script ─▶ its end ─▶ wait

What is here is the worker's life and what the script finds; how it runs and ends is in `program`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import distributed_c10d

from holdfast.arena.memory import Arena, Phase
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.group import Group
from holdfast.core.failures import LEFT_STATUS
from holdfast.errors import Aborted
from holdfast.job.script_job import ScriptJob
from holdfast.launch import environment
from holdfast.linux.lifeline import STOP_SIGNALS
from holdfast.observe import restarts
from holdfast.transport.shared_memory import SharedMemoryGroup
from holdfast.wire.channel import Channel
from holdfast.wire.messages import FinishedMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker import barriers, cascade
from holdfast.worker.failure import failure
from holdfast.worker.membership.agent_link import AgentLink, WorkerShutdown
from holdfast.worker.rendezvous import HOST, await_store_port, keep_store
from holdfast.worker.script import program


def run(launch: WorkerSpec, job: ScriptJob, arena: Arena, seat: AgentLink, channel: Channel) -> int:
    """Run a script as one of its workers; returns the exit status."""
    group = SharedMemoryGroup(arena, launch.rank, launch.job.timeout_s, barriers.describe)
    try:
        release = seat.await_resume(None)
        group.enter(release.generation, release.members)
        # The store lasts as long as rank 0 holds it here.
        store = keep_store(group, port=0) if launch.rank == 0 else None
        port = store.port if store else await_store_port(group)
        _set_environment(launch, port)
        _forget_the_fork()
        _keep_process_groups()
        if not arena.stop_requested:
            WorkerStatus(arena, launch.rank).enter(Phase.COMPUTE)
            code = program.run(job.script)
            arena.check_abort()  # its end may have come of another's
            program.end()
            if code != 0 or store is None:
                return code
            _be_quiet()  # others may still need the store
        result = {"status": "stopped" if arena.stop_requested else "finished"}
        channel.send(FinishedMessage(rank=launch.rank, generation=group.generation, result=result))
        seat.await_shutdown()
    except (WorkerShutdown, Aborted):
        return LEFT_STATUS
    except BaseException as error:  # noqa: BLE001  # the boundary of the user's code
        return _fail(error, group, channel)
    return 0


def _be_quiet() -> None:
    """Have nothing of the script disturb a worker that is there for its store alone."""
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _fail(error: BaseException, group: Group, channel: Channel) -> int:
    """Tell of an exception and end as Python does, unless another worker's death was the cause."""
    error = program.without_us(error, __file__)
    try:
        if cascade.is_connection_error(error):
            cascade.await_abort(group)
        group.check_abort()
    except Aborted:
        return LEFT_STATUS
    channel.send(failure(group.rank, error))
    with contextlib.suppress(Exception):  # the script may have put anything in its place
        sys.stdout.flush()  # what was printed before comes before
    sys.excepthook(type(error), error, error.__traceback__)
    program.end()
    return 1


def _set_environment(launch: WorkerSpec, port: int) -> None:
    """Give back what the fork server has changed for itself, and add what torchrun would."""
    environment.restore()
    rank, world_size = str(launch.rank), str(launch.job.workers)
    restarted = restarts.count(Path(launch.run_dir))
    errors = Path(launch.run_dir) / "logs" / f"rank-{rank}.error-{restarted}.json"
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": launch.attempt,
        "TORCHELASTIC_RESTART_COUNT": str(restarted),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.job.restarts.limit),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(errors),
        "HOLDFAST_RUN_DIR": launch.run_dir,
    }
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if launch.job.workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _forget_the_fork() -> None:
    """Undo what a process has from the one that it was forked from, and no other program has."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    told = int(threads) if threads.isdigit() else 0
    torch.set_num_threads(told or len(os.sched_getaffinity(0)))
    torch.default_generator.seed()  # else all would draw alike; random sees to itself
    np.random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _keep_process_groups() -> None:
    """Have no process group be destroyed, whatever the script lets go of."""
    make, kept = distributed_c10d._new_process_group_helper, []

    def make_and_keep(*arguments: Any, **more: Any) -> Any:
        kept.append(make(*arguments, **more))
        return kept[-1]

    distributed_c10d._new_process_group_helper = make_and_keep
