"""Runner: a worker that runs an unchanged torchrun script.

    halted ─▶ rendezvous ─▶ torchrun's environment ─▶ the script ─▶ its end ─▶ wait

`program` has how the script itself starts and ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import Work, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from holdfast.arena.memory import Arena, Phase
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import WorkerTag, describe
from holdfast.collectives.connections import Listener
from holdfast.collectives.group import Group
from holdfast.core.failures import LEFT_STATUS
from holdfast.errors import Aborted, JobError
from holdfast.job.script_job import Script, ScriptJob
from holdfast.launch import environment
from holdfast.linux.lifeline import STOP_SIGNALS, active_stop_signals
from holdfast.linux.supply import restrict
from holdfast.rundir.run_directory import restarts_in
from holdfast.tasks.code import FOLDER as CODE_FOLDER
from holdfast.wire.channel import Channel
from holdfast.wire.messages import FinishedMessage, ResumeMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.agent_link import AgentLink, WorkerShutdown
from holdfast.worker.failure import failure
from holdfast.worker.membership.enter_group import enter_group
from holdfast.worker.process_groups import cascade
from holdfast.worker.process_groups.interface import set_interface
from holdfast.worker.process_groups.rendezvous import Rendezvous, meet
from holdfast.worker.script import program
from holdfast.worker.script.script_steps import ScriptSteps


def run(
    spec: WorkerSpec,
    job: ScriptJob,
    arena: Arena,
    agent: AgentLink,
    channel: Channel,
    listener: Listener | None,
) -> int:
    """Run a script as one of its workers; returns the exit status."""
    group = Group(arena, spec.rank, spec.job.timeout_s, describe)
    try:
        resume = agent.await_resume(None)
        rendezvous: Rendezvous | None = None
        if job.script.process_groups:
            enter_group(group, agent, listener, resume)
            # The store lasts as long as rank 0 holds it here.
            rendezvous = meet(group, agent, job.network, job.port)
            restarted = max(group.barrier(WorkerTag.ATTACH, 0, restarts_in(Path(spec.run_dir))))
            _set_environment(spec, group, rendezvous, restarted)
            _leave_network(group, listener)
        else:
            group.enter(resume.generation, resume.members)  # and meet none of them
            _set_lone_environment(spec, resume, listener)
        _forget_the_fork()
        _keep_process_groups()
        # The run may have been stopped before the script has begun.
        if not arena.stop_requested:
            script = _script_here(job.script, Path(spec.run_dir))
            status = WorkerStatus(arena, spec.rank)
            status.enter(Phase.FORWARD)
            CollectiveTimes(status).begin()
            steps = ScriptSteps(arena, spec.rank, group.local, Path(spec.run_dir))
            steps.begin()
            code = program.run(script)
            steps.settle()
            arena.check_abort()  # another worker's failure may have ended it
            program.end()
            if code != 0 or (rendezvous is not None and rendezvous.store is None):
                return code
            _be_quiet()  # others may still need the store, or what the script serves
        result = {"status": "stopped" if arena.stop_requested else "finished"}
        channel.send(FinishedMessage(rank=spec.rank, generation=group.generation, result=result))
        agent.await_shutdown()
    except (WorkerShutdown, Aborted):
        return LEFT_STATUS
    except BaseException as error:  # noqa: BLE001  # the boundary of the user's code
        return _fail(error, group, channel)
    return 0


def _be_quiet() -> None:
    """Stop timers and signals of the script: this worker remains for others only."""
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _fail(error: BaseException, group: Group, channel: Channel) -> int:
    """Report an exception and end as Python does, unless another worker's failure caused it."""
    error = program.strip_internal_frames(error, __file__)
    # A connection to a worker that was lost breaks before its loss is known: that is no error of
    # this script.
    try:
        if cascade.is_connection_error(error):
            cascade.await_abort(group)
        group.check_abort()
    except Aborted:
        return LEFT_STATUS
    channel.send(failure(group.rank, error))
    with contextlib.suppress(Exception):  # the script may have replaced it
        sys.stdout.flush()  # keeps the order of what was printed
    sys.excepthook(type(error), error, error.__traceback__)
    program.end()
    return 1


def _set_environment(
    spec: WorkerSpec, group: Group, rendezvous: Rendezvous, restarted: int
) -> None:
    """Undo the fork server's changes, and set the variables that torchrun sets.

    Args:
        spec: Specification of this worker.
        group: Says which workers are on which host.
        rendezvous: Place of the store.
        restarted: Number of restarts of all workers.
    """
    _restore_environment(spec)
    hosts = (group.members,) if group.network is None else group.network.hosts.ranks
    rank = str(spec.rank)
    world_size = str(len(group.members))
    errors = Path(spec.run_dir) / "logs" / f"rank-{rank}.error-{restarted}.json"
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": str(group.local.index(spec.rank)),
        "ROLE_RANK": rank,
        "GROUP_RANK": str(hosts.index(group.local)),
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(len(group.local)),
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "ROLE_NAME": "default",
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "TORCHELASTIC_RUN_ID": spec.attempt,
        "TORCHELASTIC_RESTART_COUNT": str(restarted),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.job.restarts.limit),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(errors),
        "HOLDFAST_RUN_DIR": spec.run_dir,
    }
    if spec.job.network == "trusted":
        set_interface(group)
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if len(group.local) > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _set_lone_environment(
    spec: WorkerSpec, resume: ResumeMessage, listener: Listener | None
) -> None:
    """Set what a script without process groups finds: its rank, and how to reach the others."""
    _restore_environment(spec)
    peers = {
        "addresses": resume.addresses,
        "key": resume.key,
        "listener": None if listener is None else listener.socket.fileno(),
    }
    os.environ |= {
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(len(resume.members)),
        "HOLDFAST_PEERS": json.dumps(peers),
        "HOLDFAST_RUN_DIR": spec.run_dir,
    }


def _restore_environment(spec: WorkerSpec) -> None:
    """Undo the fork server's changes, and set the variables of the job."""
    # The script must find what torchrun would give it, not what the fork server has set.
    environment.restore()
    if spec.share is not None:
        restrict(spec.share)
    os.environ |= spec.job.env


def _script_here(script: Script, run_dir: Path) -> Script:
    """The script as this host has it: as its own path says, else as the coordinator has sent it.

    Raises:
        JobError: This host does not have it.
    """
    sent = run_dir.resolve() / CODE_FOLDER
    if script.path is None:
        sys.path += [str(sent)] * sent.is_dir()
        return script
    if Path(script.path).is_file():
        return script
    if (sent / Path(script.path).name).is_file():
        return script.model_copy(update={"path": str(sent / Path(script.path).name)})
    raise JobError(
        f"script {script.path!r} is not on host {socket.gethostname()}, in {Path.cwd()}; start "
        "holdfast agent in a directory from which this path leads to the script"
    )


def _leave_network(group: Group, listener: Listener | None) -> None:
    """Close what the script, and processes that it forks, must not inherit."""
    if group.network is not None:
        group.network.close()
    if listener is not None:
        listener.close()


def _forget_the_fork() -> None:
    """Undo what a process inherits from the fork server and no other program has."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    num_threads = int(threads) if threads.isdigit() else 0
    torch.set_num_threads(num_threads or len(os.sched_getaffinity(0)))
    torch.default_generator.seed()  # else all draw the same numbers; `random` reseeds itself
    np.random.seed()
    for number in active_stop_signals():
        is_interrupt = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def _keep_process_groups() -> None:
    """Keep every process group alive, even if the script drops its references."""
    make = distributed_c10d._new_process_group_helper
    kept = []

    def make_and_keep(*arguments: Any, **more: Any) -> Any:
        kept.append(make(*arguments, **more))
        return kept[-1]

    distributed_c10d._new_process_group_helper = make_and_keep


class CollectiveTimes:
    """Measures how long one worker's script waits in collectives, as the phase `reduce`.

        work.wait() ────────────────────────▶ of what Python has started: all_reduce, barrier, …
        loss.backward() ─ last gradient ─▶ begin ─ DistributedDataParallel waits ─▶ end

    PyTorch has a hook on collectives for NCCL only. What is measured is the time of the host, which
    does not wait for a GPU.

    Args:
        status: Status in which the time is counted.
    """

    def __init__(self, status: WorkerStatus) -> None:
        self._status = status
        self._pid = os.getpid()

    def begin(self) -> None:
        """Measure in this process from now on."""
        wait = Work.wait
        forward = DistributedDataParallel.forward

        @functools.wraps(wait)
        def measured(work: Work, *arguments: Any, **more: Any) -> bool:
            began = time.monotonic_ns()
            try:
                return wait(work, *arguments, **more)
            finally:
                self._count(began)

        @functools.wraps(forward)
        def awaited(model: DistributedDataParallel, *inputs: Any, **more: Any) -> Any:
            output = forward(model, *inputs, **more)  # type: ignore[no-untyped-call]
            if not torch.compiler.is_compiling():
                for each in tree_leaves(output):
                    if isinstance(each, torch.Tensor) and each.requires_grad:
                        each.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
            return output

        Work.wait = measured  # type: ignore[assignment, method-assign]
        DistributedDataParallel.forward = awaited  # type: ignore[assignment, method-assign]

    def _on_backward(self, _: torch.Tensor) -> None:
        """Called before DistributedDataParallel sees a gradient, so that what is queued here runs
        before it waits, and what is queued then runs after it.
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback

        def begin() -> None:
            began = time.monotonic_ns()
            queue(lambda: self._count(began))

        queue(begin)

    def _count(self, began: int) -> None:
        if os.getpid() == self._pid:  # else the script has forked this process
            self._status.count(Phase.REDUCE, began)
