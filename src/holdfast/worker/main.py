"""A worker's entry point, called in a newly forked process."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import torch

from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.connections import Listener
from holdfast.core.failures import LEFT_STATUS
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.errors import MEANINGS, Aborted, JobError
from holdfast.job.script_job import ScriptJob
from holdfast.job.settings import Program
from holdfast.linux import allocator
from holdfast.linux.supply import restrict
from holdfast.rundir.stacks import stacks_file, write_on_signal
from holdfast.tasks import by_value
from holdfast.tasks import program as programs
from holdfast.tasks.code import located
from holdfast.tasks.main_guard import PROGRAM
from holdfast.wire.channel import Channel
from holdfast.wire.messages import FinishedMessage
from holdfast.wire.worker_spec import FORK_SPEC, WorkerSpec, WriterSpec
from holdfast.worker import fit
from holdfast.worker.agent_link import AgentLink, SelfEviction, StopRequested, WorkerShutdown
from holdfast.worker.checkpoints import writer_process
from holdfast.worker.checks.numerics import exactness, numerics_of
from holdfast.worker.checks.self_test import sensitive_kernels
from holdfast.worker.devices import device_of
from holdfast.worker.failure import failure
from holdfast.worker.membership.member import Member
from holdfast.worker.script import runner
from holdfast.worker.session import Session
from holdfast.worker.step.partial_weights import partial_weights_explained


def main(config: str, arena_fd: int, socket_fd: int) -> int:
    """Run one worker, or the writer of a host; returns its exit status.

    Args:
        config: A `WorkerSpec` or a `WriterSpec` as JSON.
        arena_fd: The arena.
        socket_fd: A connected Unix socket to the agent.
    """
    spec = FORK_SPEC.validate_json(config)
    channel = Channel(socket.socket(fileno=socket_fd))
    arena = Arena(arena_fd)
    if isinstance(spec, WriterSpec):
        return writer_process.run(spec, arena, channel)
    if spec.share is not None:
        restrict(spec.share)
    status = WorkerStatus(arena, spec.rank)
    status.claim()
    write_on_signal(stacks_file(Path(spec.run_dir) / "logs", spec.rank))
    listener = Listener(spec.interface, spec.credentials) if spec.interface else None
    address = listener.address if listener else ""
    numerics = _numerics(spec) if listener else {}
    agent = AgentLink(status, arena, channel, address, spec.tunnel, numerics)
    if isinstance(spec.job, ScriptJob):
        return runner.run(spec, spec.job, arena, agent, channel, listener)
    torch.set_num_threads(spec.train_job.threads_per_worker)
    if spec.train_job.parallel.zero:  # whose layers come and go
        allocator.return_freed_blocks()
    try:
        member = Member(spec, arena, agent, channel, listener)
        ending = _train(Session(spec.train_job, member), Path(spec.run_dir))
        _finish(member, agent, channel, ending)
    except (WorkerShutdown, Aborted):
        return LEFT_STATUS
    except SelfEviction as end:
        channel.send(failure(spec.rank, end.error))
        print(f"{type(end.error).__name__}: {end.error}", file=sys.stderr)
        return LEFT_STATUS if MEANINGS[type(end.error)].is_cascading else 1
    except BaseException as error:  # noqa: BLE001  # the boundary of the user's code
        channel.send(failure(spec.rank, error))
        sys.stdout.flush()  # keeps the order of what was printed
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _numerics(spec: WorkerSpec) -> dict[str, str]:
    """Values that other hosts must have in common with this one to compute the same bits."""
    if isinstance(spec.job, ScriptJob):
        return {}
    job = spec.train_job
    return numerics_of(job.numerics, job.model, device_of(job.device, spec.slot))


def _train(session: Session, run_dir: Path) -> str:
    """Run the user's code; returns how it ended."""
    try:
        with partial_weights_explained(session.job.parallel):
            _run_task(session, located(session.job.task, run_dir))
    except StopRequested:
        return "stopped"
    return "finished"


def _finish(member: Member, agent: AgentLink, channel: Channel, status: str) -> None:
    """Reach the end with the other members; a worker that is lost meanwhile is replaced, too."""
    while True:
        try:
            # Returns once all members have committed the last step, and it is durable.
            member.finish()
            result = {**result_of(member), "status": status}
            generation = member.group.generation
            channel.send(
                FinishedMessage(rank=member.group.rank, generation=generation, result=result)
            )
            agent.await_shutdown()
        except Aborted:
            member.join()
        else:
            return


def result_of(member: Member) -> dict[str, Any]:
    """The result of the run; the same from every member."""
    if member.models is None:
        return {}
    job = member.job
    progress = member.progress
    best = progress.evaluations.best
    return {
        "steps": progress.step,
        "loss": progress.loss,
        "metrics": progress.evaluations.metrics,
        "best": None if best.value is None else {"step": best.step, "value": best.value},
        **member.metrics.throughput(),
        "seconds": member.times.means(),
        "bottleneck": member.breakdown.in_words,
        "exactness": exactness(job, progress.numerics_changes),
        "weights_sha256": member.weights_sha256(),
        "weights": member.models.weights,
    }


def _run_task(session: Session, reference: str) -> None:
    Session.current = session
    task = load_task(reference, session.job.program)
    if session.job.arguments or reference.endswith(f":{PROGRAM}"):
        sys.argv = [reference.rpartition(":")[0], *session.job.arguments]
    seed_everything(seed_for("main", session.job.seed))
    if inspect.isclass(task):
        fit.fit(session, cast("type[Any]", task)(session.job))
        return
    arguments = [session] if inspect.signature(task).parameters else []
    try:
        inspect.signature(task).bind(*arguments)
    except TypeError as error:
        raise JobError(
            "a training function takes one argument, the session, or none: "
            f"{session.job.task}: {error}"
        ) from None
    task(*arguments)


def load_task(task: str, program: Program | None) -> Any:
    """The class or function that a reference names, of the program that asked for the run.

    Random numbers that its module draws are the same in every process that imports it.

    Raises:
        JobError: It cannot be imported.
    """
    # Not by the folder: each host has the code in its own.
    place, _, name = task.rpartition(":")
    seed_everything(seed_for("import", f"{Path(place).name}:{name}"))
    return programs.load(program, task)


def keep_task(name: str, packed: bytes) -> None:
    """Make a task known that comes by value; see `tasks.by_value`."""
    by_value.keep(name, packed)


def warm_up() -> None:
    """Do once, before a fork, what every worker would otherwise do in its first step."""
    assert os.environ.get("OMP_NUM_THREADS") == "1", "threads must not start before a fork"
    layer = torch.nn.Linear(2, 2)
    torch.optim.SGD(layer.parameters(), lr=0.1)  # imports what optimizers need
    sensitive_kernels()
