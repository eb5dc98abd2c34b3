"""The agent's process: one on a host, for one run."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Self

from holdfast.agent.agent import Agent
from holdfast.agent.checkpoints import Checkpoints
from holdfast.agent.run_context import RunContext
from holdfast.agent.scores import with_devices
from holdfast.agent.tunnel import Tunnel
from holdfast.agent.writer_handle import WriterHandle
from holdfast.arena.memory import Arena
from holdfast.checkpoint.sealing.seal import Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.protocol import FENCED, LEFT, RUN_FAILED
from holdfast.errors import HoldfastError
from holdfast.hardware.host_supply import gpus_here
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.fork_client import ForkClient
from holdfast.linux.lifeline import LEAVE, die_with_parent, leave_signals_to_parent
from holdfast.rundir import code_version
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS, moved_coordinator
from holdfast.rundir.system_file import SystemFile
from holdfast.wire.channel import Channel
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import DesiredStateMessage, Service, StatusMessage
from holdfast.wire.tls import HostCredentials
from holdfast.wire.worker_spec import SHARES

POLL_S = 0.1
"""The longest that the agent waits for something to happen."""
LEAVE_TIMEOUT_S = 1.0
"""Time that a host which leaves waits for a coordinator that does not answer."""
COORDINATOR_TIMEOUT_S = 600.0
"""Time that an agent of another host continues without a coordinator."""


def main(words: Sequence[str]) -> int:
    """Serve until the coordinator says that the run is over; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--node", default="")
    parser.add_argument("--interface", default="")
    parser.add_argument("--credentials", type=int)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--forks", type=int, required=True)
    parser.add_argument("--shares", type=SHARES.validate_json, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(words)
    die_with_parent(options.parent)
    leave_signals_to_parent()
    try:
        reason = _serve(options)
    except (HoldfastError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if reason in ("", FENCED, LEFT):
        return os.EX_OK
    print(" ".join(reason.split()), file=sys.stderr)
    return RUN_FAILED


def _serve(options: argparse.Namespace) -> str:
    """Serve until the run is over; returns why, or nothing if all went well."""
    leaves: list[bool] = []
    signal.signal(LEAVE, lambda *_: leaves.append(True))
    memory = options.credentials
    credentials = HostCredentials() if memory is None else HostCredentials.take(memory)
    job = load.of_run(options.run_dir)
    data = credentials.data
    run = RunContext(
        host=options.name,
        node=options.node,
        job=job,
        directory=options.run_dir,
        attempt=options.attempt,
        interface=options.interface,
        credentials=data,
        tunnel=Tunnel(options.interface, data) if data and job.has_process_groups else None,
        shares=options.shares,
    )
    forks = ForkClient(Channel(socket.socket(fileno=options.forks)))
    link = CoordinatorLink[StatusMessage, DesiredStateMessage](
        options.address, lambda channel: Service(channel).attend, credentials.agent
    )
    settings = run.job.checkpoint
    code = code_version.kept(options.run_dir)
    store = CheckpointStore.of_run(options.run_dir, Seal.of(settings))
    with closing(link), EventLog(options.run_dir / EVENTS) as log:
        forks.await_ready()
        run = with_devices(run, log)  # once torch is imported: nothing else computes here now
        arena = Arena(options.arena)
        with (
            SystemLog(run) as system,
            closing(WriterHandle(forks, run, arena.fd, log)) as writer,
            Checkpoints(
                store,
                options.attempt,
                log,
                arena,
                writer.write,
                writer.delete_old,
                run.where,
                code,
            ) as checkpoints,
            closing(
                Agent(options.name, run, forks, arena, log, link, checkpoints, writer)
            ) as agent,
        ):
            followed = options.run_dir if credentials.agent else None
            return _attend(agent, link, system, leaves, followed)


def _attend(
    agent: Agent,
    link: CoordinatorLink[StatusMessage, DesiredStateMessage],
    system: SystemLog,
    leaves: list[bool],
    followed: Path | None,
) -> str:
    """Let the agent work until the run is over; returns why, or nothing if all went well.

    Args:
        agent: Works.
        link: Its link.
        system: Samples its workers.
        leaves: Not empty once this host must leave the run.
        followed: A run directory that has the address of a coordinator that moves; None if it
            cannot move.

    Raises:
        HoldfastError: The coordinator has been away for too long.
    """
    look_at = 0.0
    while agent.exit_reason is None:
        agent.poll(POLL_S)
        # The command of this host writes the address when the coordinator has moved.
        if followed and (now := time.monotonic()) >= look_at:
            look_at = now + POLL_S
            link.redirect(moved_coordinator(followed) or link.address)
        if leaves:
            agent.leave()
            if link.broken_s > LEAVE_TIMEOUT_S:
                return LEFT
        system.workers = agent.ranks
        if link.broken_s > COORDINATOR_TIMEOUT_S:
            raise HoldfastError(
                f"no coordinator has answered at {link.address} for "
                f"{COORDINATOR_TIMEOUT_S:.0f} s; the run may have been killed"
            )
    return agent.exit_reason


INTERVAL_S: Final = 2.0
"""Interval of the host's samples."""
END_TIMEOUT_S: Final = 1.0
"""Time that the end waits for a sample: a driver may hang."""


class SystemLog:
    """Samples what the host uses, for `system.jsonl`, from `__enter__` to `__exit__`.

    Args:
        run: The run of the agent.

    Attributes:
        workers: The rank of each worker by its process. The agent replaces it as they change.
    """

    def __init__(self, run: RunContext) -> None:
        self.workers: Mapping[int, int] = {}
        self._run = run
        self._file = SystemFile(run.directory)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="system-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(END_TIMEOUT_S)

    def _work(self) -> None:
        delay_s = INTERVAL_S / 2
        if self._closing.wait(delay_s):
            return  # a run this short needs no driver, whose library takes time to import
        from holdfast.hardware.system import SystemSampler

        sampler = SystemSampler(self._run.host, _gpus_of(self._run))
        while not self._closing.wait(delay_s):
            delay_s = INTERVAL_S
            with suppress(OSError):  # what cannot be read now is read the next time
                self._file.add([sampler.sample(self.workers)])


def _gpus_of(run: RunContext) -> tuple[str, ...]:
    """The UUIDs of the GPUs that the workers of a run use here, in the order of their slots."""
    if isinstance(run.job, TrainJob) and run.job.device == "cpu":
        return ()
    shared = tuple(dict.fromkeys(name for share in run.shares for name in share.gpus))
    return shared or gpus_here(os.environ)
