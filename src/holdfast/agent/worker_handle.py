"""Worker handle: a worker's process, as its agent holds it."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.run_context import RunContext
from holdfast.core.actions import ResumeWorkers
from holdfast.core.agent import AgentStateMachine
from holdfast.core.failures import Report
from holdfast.core.membership import by_host
from holdfast.errors import HoldfastError
from holdfast.launch.child import KILL_TIMEOUT_S
from holdfast.launch.fork_client import ForkClient
from holdfast.linux.lifeline import INTERRUPT
from holdfast.rundir.run_directory import worker_log
from holdfast.rundir.stacks import MAIN_SIGNAL, innermost, request_stacks, stacks_file
from holdfast.wire.channel import Channel, pair
from holdfast.wire.messages import MemoryMessage, ResumeMessage


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerHandle:
    """One worker's process.

    Attributes:
        number: The process number in the agent's state machine.
        slot: Its number among the workers of its host, which decides its share and its GPU.
        stacks: The file for its stacks.
        report: Its report of the exception that ended it.
        after_failure: True if another worker has failed since it was resumed.
        has_resumed: True if it has been a member.
        halted_at: Time at which such a worker halted, Unix time, seconds; None while it computes.
        cancelled: True if it was killed for no fault of its own.
        is_on_standby: True if it is no member for now.
        has_memory: True if others can map memory of its device.
        hung: Reason for which it counted as hung, if it did.
        stacks_from: Position of its stacks in their file; None if it was not asked for them.
        killed_at: Time at which it was killed, if it was, monotonic seconds.
    """

    rank: int
    number: int
    slot: int
    pid: int
    pidfd: int
    channel: Channel
    stacks: Path
    report: Report | None = None
    after_failure: bool = False
    has_resumed: bool = False
    halted_at: float | None = None
    cancelled: bool = False
    is_on_standby: bool = False
    has_memory: bool = False
    hung: str = ""
    stacks_from: int | None = None
    killed_at: float | None = None

    @property
    def named(self) -> dict[str, int]:
        """Fields that name it in an event."""
        return {"rank": self.rank, "pid": self.pid}

    def kill(self) -> None:
        """Kill it."""
        self.killed_at = self.killed_at or time.monotonic()
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask its script to end, by SIGTERM."""
        self._send(signal.SIGTERM)

    def interrupt(self) -> None:
        """Have it leave an evaluation, if it is in one."""
        self._send(INTERRUPT)

    def request_stacks(self) -> None:
        """Ask it to write its stacks."""
        self.stacks_from = request_stacks(self.pidfd, self.stacks)

    def request_main_stack(self) -> int:
        """Ask it for the stack of its main thread; returns where in the file that will begin."""
        return request_stacks(self.pidfd, self.stacks, MAIN_SIGNAL)

    def innermost_frames(self) -> list[str] | None:
        """The innermost frames that it has written; None if it was not asked."""
        return None if self.stacks_from is None else innermost(self.stacks, self.stacks_from)

    def check_end(self, now: float) -> None:
        """Raises: HoldfastError: it was killed long ago and has not exited."""
        if self.killed_at is not None and now - self.killed_at > KILL_TIMEOUT_S:
            raise HoldfastError(
                f"rank {self.rank} has not ended {KILL_TIMEOUT_S:.0f} s after SIGKILL; a disk "
                "may hang. Resume the run from its last checkpoint on another host"
            )

    def close(self) -> None:
        """Close its channel and its pidfd."""
        self.channel.close()
        os.close(self.pidfd)

    def _send(self, number: signal.Signals | int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


def fork_worker(
    forks: ForkClient,
    run: RunContext,
    arena_fd: int,
    rank: int,
    number: int,
    slot: int,
    memory_fd: int | None,
) -> WorkerHandle:
    """Fork the worker of a rank.

    Args:
        forks: A fork server.
        run: The run.
        arena_fd: The host's shared memory.
        rank: The rank.
        number, slot: Defined in `WorkerHandle`.
        memory_fd: Device memory that the worker before has left; None without any.
    """
    near, far = pair()
    # Before the fork: it is there when the worker looks for it.
    if memory_fd is not None:
        near.send(MemoryMessage(rank=rank), (memory_fd,))
    launch = run.worker_spec(rank, slot).model_dump_json()
    path = worker_log(run.directory / "logs", rank)
    # Appended to: the log of a rank has the output of all workers that have had it.
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        pid, pidfd = forks.fork(rank, launch, (arena_fd, far.fileno(), log))
    finally:
        os.close(log)
        far.close()
    return WorkerHandle(
        rank=rank,
        number=number,
        slot=slot,
        pid=pid,
        pidfd=pidfd,
        channel=near,
        stacks=stacks_file(run.directory / "logs", rank),
    )


def await_exits(workers: Iterable[WorkerHandle], timeout_s: float) -> None:
    """Wait until all of some workers have exited, `timeout_s` at most."""
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        ended = select.poll()
        ended.register(worker.pidfd, select.POLLIN)
        ended.poll(1000 * max(0.0, deadline - time.monotonic()))


def resume_message(
    action: ResumeWorkers, machine: AgentStateMachine, key: str, restore: Iterable[str]
) -> ResumeMessage:
    """Message to every member.

    Args:
        action: Says where the generation begins.
        machine: Knows the members and their caps.
        key: Secret of the members.
        restore: The checkpoints of this host, newest first.
    """
    members = machine.members
    hosts = tuple(by_host(members).values())
    return ResumeMessage(
        hosts=hosts if len(hosts) > 1 else (),
        addresses=dict(action.addresses),
        key=key,
        generation=action.generation,
        members=tuple(sorted(members)),
        step=action.start.step,
        donors=dict(action.start.donors),
        restore=tuple(restore),
        caps=dict(machine.caps),
    )


class HeldMemory:
    """Device memory of workers, as their agent holds it: descriptors by rank, which it never uses.

    The memory exists as long as its descriptor is open somewhere. So it outlives a worker that is
    lost, until another worker has taken its rank or the run continues without it.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def hold(self, rank: int, fd: int) -> None:
        """Hold the memory of the worker of a rank, in place of that of the worker before."""
        self.drop(rank)
        self._fds[rank] = fd

    def of(self, rank: int) -> int | None:
        """The memory of a rank; None if there is none."""
        return self._fds.get(rank)

    def of_others(self, rank: int) -> Mapping[int, int]:
        """The memory of all other ranks."""
        return {each: fd for each, fd in self._fds.items() if each != rank}

    def keep(self, ranks: Collection[int]) -> None:
        """Drop the memory of all other ranks."""
        for rank in self._fds.keys() - set(ranks):
            self.drop(rank)

    def drop(self, rank: int) -> None:
        """Drop the memory of a rank, if there is any."""
        if (fd := self._fds.pop(rank, None)) is not None:
            os.close(fd)
