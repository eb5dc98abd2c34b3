"""CoordinatorProcess: a run's coordinator as a child process, and the link to it.

    command ── run requests ─▶ coordinator
            ◀─ run states ────

A coordinator that dies is started again. It reads its journal, and training does not wait for it.
The request that the command has made last is sent to every new one.

In a run on several hosts a coordinator runs here only while the node of this host leads
(`runs.replication.host_node`). Once that leads no longer, the coordinator is ended. If the node
leads again, another is started, which reads what the journal has by then. If another host leads, or
this one has left, `restart_if_ended` raises: the run continues there.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from holdfast.core.protocol import Stage
from holdfast.errors import HoldfastError, Interrupted, JobError
from holdfast.job import load
from holdfast.launch.child import Child, Forker
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import RunPaths, is_held
from holdfast.runs.process_exits import ProcessExits, kill_if_stopped
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import (
    RunRequestMessage,
    RunStateMessage,
    ScaledMessage,
    ScaleMessage,
    Service,
    open_channel,
    status_of,
)

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from holdfast.runs.replication.host_node import Node

SOCKET: Final = "coordinator.sock"
"""Socket on which it listens, in the run's directory; only its owner may connect."""
SHUTDOWN_TIMEOUT_S: Final = 15.0
"""Time that processes may take to leave once the run is over, seconds."""
ABORT_TIMEOUT_S: Final = 3.0
"""Time that a run on several hosts may take to be over once it was aborted, seconds."""
LISTEN_TIMEOUT_S: Final = 10.0
"""Time until the coordinator of a run that has begun accepts a request, at most."""
SCALE_TIMEOUT_S: Final = 300.0
"""Time that new workers may take until they train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """Terms on which other hosts take part in a run.

    Attributes:
        node: The node of this host, which keeps the journal with those of others.
        address: Address and port where they join.
        limit: Number of hosts that may take part at once besides this one.
        collects: True if this host has no agent.
        moves: True if another host takes over the coordinator if this one is lost.
    """

    node: Node
    address: str
    limit: int
    collects: bool = False
    moves: bool = True


class CoordinatorProcess:
    """The coordinator of one run.

    Args:
        directory: The run's directory.
        attempt: Names this start of the run.
        watch: True if the run's progress is shown.
        forks: Forks the coordinator, if it can.
        log: The run's log of events.
        exits: Counts the ends of coordinators.
        joining: Terms on which other hosts take part; None if the run has one host.

    Attributes:
        address: Address at which it listens, as gRPC names it.
        state: The newest state of the run; None before a coordinator has sent one.
        has_begun: True if enough hosts have joined, in this start of the run.
    """

    def __init__(
        self,
        directory: RunPaths,
        attempt: str,
        log: EventLog,
        exits: ProcessExits,
        *,
        watch: bool,
        forks: Forker | None = None,
        joining: Joining | None = None,
    ) -> None:
        self._joining = joining
        self._forks = forks
        self._link: CoordinatorLink[RunRequestMessage, RunStateMessage] | None = None
        self._directory = directory
        self._attempt = attempt
        self._log = log
        self._exits = exits
        self._request = RunRequestMessage(watch=watch)
        self.state: RunStateMessage | None = None
        self.has_begun = False
        self._is_leaving = False
        self._is_paused = False
        self._times_led = 0
        with ExitStack() as owned:
            # The path to a socket must be short, and that to a run's directory need not be.
            folder = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            owned.callback(os.close, folder)
            self.address = f"unix:/proc/{os.getpid()}/fd/{folder}/{SOCKET}"
            self._child = self._start()
            owned.callback(self._end)
            self._owned = owned.pop_all()

    def connect(self) -> None:
        """Connect to it: the last step of a start, because it starts threads, with which this
        process could not be forked.
        """
        if self._joining is not None:
            self._joining.node.start()
        self._link = CoordinatorLink(self.address, lambda channel: Service(channel).watch)
        self._link.send(self._request)

    def sources(self) -> Iterable[HasFileno]:
        """Sources that are readable when there is news."""
        if self._is_paused:
            return ()
        return (self._child,) if self._link is None else (self._link, self._child)

    @property
    def is_over(self) -> bool:
        """True if the coordinator has said that the run is over."""
        return self.state is not None and self.state.stage == Stage.END

    @property
    def lacks_workers(self) -> bool:
        """True if the run can only continue once more hosts join."""
        return self.state is None or self.state.lacks_workers

    @property
    def is_receiving(self) -> bool:
        """True while a checkpoint is arriving here."""
        return self.state is not None and self.state.is_receiving

    @property
    def is_awaited(self) -> bool:
        """True if, at the end, a host may still have a checkpoint for this one."""
        return self.state is not None and self.state.is_awaited

    def listen(self) -> None:
        """Take the newest state, if one has come."""
        state = self._link.receive() if self._link else None
        if state is not None and self.state is None:  # it is up
            self._child.set_low_priority(enabled=False)
        self.state = state or self.state
        self.has_begun |= state is not None and state.stage != Stage.IDLE

    def await_end(self, timeout_s: float) -> bool:
        """Wait this long for the run to be over; returns whether it is."""
        deadline = time.monotonic() + timeout_s
        news = select.poll()
        if self._link is not None:
            news.register(self._link, select.POLLIN)
        while not self.is_over and (left_s := deadline - time.monotonic()) > 0:
            news.poll(1000 * left_s)
            self.listen()
        return self.is_over

    def request_stop(self) -> None:
        """Ask for the end of the run after the current step, and for its progress until then."""
        self._say(self._request.model_copy(update={"stop": True, "watch": True}))

    def abort(self) -> None:
        """End the run at once on all hosts: else the others would continue it."""
        if self._joining is not None:
            self._say(self._request.model_copy(update={"abort": True}))
            self.await_end(ABORT_TIMEOUT_S)

    def report_lost(self, host: str) -> None:
        """Tell the coordinator that an agent is gone for good."""
        self._say(self._request.model_copy(update={"lost": (*self._request.lost, host)}))

    @property
    def can_move(self) -> bool:
        """True if another host takes part that can take over the coordinator."""
        joining = self._joining
        return joining is not None and joining.moves and joining.node.has_others

    def hand_over(self) -> None:
        """Have another host take over, because this one leaves; repeated until it has."""
        self._is_leaving = True
        if self._joining is not None:
            self._joining.node.leave()

    def restart_if_ended(self) -> None:
        """Start another if this one has ended.

        Raises:
            Interrupted: Another host has taken over, because this one leaves.
            HoldfastError: It failed by itself, ends too often, or another host leads.
        """
        if not self._leads():
            self._pause()
            return
        if not self._is_paused:
            kill_if_stopped(self._child)
            if self._child.status is None:
                return
            if self._child.ended_with_fork_server:
                self._exits.note("coordinator", self._child)  # one failure, which the host counts
            else:
                self._exits.tolerate("coordinator", self._child)
        self.disconnect()  # what the last one has said may still be under way
        self._child = self._start()
        # No step waits for it; but on several hosts it alone finds those that are lost.
        self._child.set_low_priority(enabled=self._joining is None)
        self.connect()

    def disconnect(self) -> None:
        """Listen no more. At the end of a run, the coordinator ends then."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End it."""
        self.disconnect()
        self._owned.close()

    def _say(self, request: RunRequestMessage) -> None:
        self._request = request
        if self._link is not None:
            self._link.send(request)

    def _start(self) -> Child:
        self.state = None  # it has told us nothing yet
        self._is_paused = False
        options = {
            "run-dir": self._directory.path,
            "attempt": self._attempt,
            "address": self.address,
        }
        log = self._directory.logs / "coordinator.log"
        with ExitStack() as until_started:
            fds = []
            if (joining := self._joining) is not None:
                self._times_led = joining.node.times_led
                near, far = socket.socketpair()
                until_started.enter_context(far)
                joining.node.serve_journal(near)
                fds.append(far.fileno())
                options |= {
                    "public": joining.address,
                    "joining": joining.limit,
                    "journal": far.fileno(),
                    "node": joining.node.name,
                    "collects": int(joining.collects),
                    "moves": int(joining.moves),
                }
            child = Child.start("holdfast.coordinator.main", options, log, fds, self._forks)
        self._log.event("coordinator-started", pid=child.pid)
        return child

    def _pause(self) -> None:
        """End the coordinator until this host leads again."""
        if not self._is_paused:
            self._is_paused = True
            self._log.event("coordinator-paused")
            self.disconnect()
            self._child.close()

    def _leads(self) -> bool:
        """True while this host leads as it did when the coordinator was started.

        Raises:
            Interrupted, HoldfastError: Another host coordinates the run, or will.
        """
        if self._joining is None:
            return True
        node = self._joining.node
        # It may have lost and won an election since the coordinator was started, which then lacks
        # entries.
        if node.leads or not node.has_led:
            return self._is_paused or node.times_led == self._times_led
        node.take_news()  # it may have failed
        if not self._is_leaving and not node.is_deposed:
            return False
        if self._is_leaving:
            raise Interrupted("this host has left the run, which continues on the others")
        raise HoldfastError(
            "this host was cut off from the others, which continue the run if they can; "
            "take part in it again by `holdfast agent`, with a token that `holdfast token` "
            "makes on the host that coordinates it now"
        )

    def _end(self) -> None:
        """It ends by itself when a command that has heard of the end of the run leaves."""
        with suppress(HoldfastError):  # the run has ended as it has
            self._child.close(SHUTDOWN_TIMEOUT_S if self.is_over else 0)
        (self._directory.path / SOCKET).unlink(missing_ok=True)


def scale(run_dir: Path, workers: int) -> ScaledMessage:
    """Give a run another number of workers, and wait until they train.

    No committed step is computed again, except where all workers restart from a checkpoint.

    Args:
        run_dir: The run's directory, on its first host.
        workers: Their number.

    Raises:
        JobError: The run cannot have so many, or does not run here.
        HoldfastError: They do not train in time.
    """
    job = load.of_run(run_dir)
    if job.keeps_workers and workers != job.workers:
        raise JobError(
            f"{run_dir} keeps its {job.workers} workers, because its model is divided over them; "
            f"stop it, and resume it with workers={workers}"
        )
    if workers > job.most_workers:
        raise JobError(
            f"{run_dir} can have {job.most_workers} workers at most, not {workers}; start a run "
            f"with max_workers={workers}, or on more hosts, by max_hosts"
        )
    # The path to a socket must be short, and that to a run's directory need not be.
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    address = f"unix:/proc/{os.getpid()}/fd/{folder}/{SOCKET}"
    try:
        with closing(open_channel(address, None)) as channel:
            if is_held(run_dir):  # the run may have just begun
                with suppress(grpc.FutureTimeoutError):
                    grpc.channel_ready_future(channel).result(LISTEN_TIMEOUT_S)
            scaled = Service(channel).scale(ScaleMessage(workers=workers), timeout=SCALE_TIMEOUT_S)
    except grpc.RpcError as error:
        if status_of(error) == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise HoldfastError(
                f"{run_dir} does not train with {workers} workers after {SCALE_TIMEOUT_S:.0f} s; "
                f"`holdfast top {run_dir}` shows what it waits for"
            ) from None
        raise JobError(
            f"the coordinator of {run_dir} does not answer; scale a run on the host where it was "
            "started, while it trains"
        ) from None
    finally:
        os.close(folder)
    if scaled.refusal:
        raise JobError(f"{run_dir} cannot have {workers} workers: {scaled.refusal}")
    return scaled
