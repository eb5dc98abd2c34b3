"""CoordinatorProcess: a run's coordinator as a child process, and the link to it.

    command ── run requests ─▶ coordinator
            ◀─ run states ────

A coordinator that dies is started again. It reads its journal, and training does not wait for it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from holdfast.core.protocol import Stage
from holdfast.errors import HoldfastError
from holdfast.launch.child import Child, Forker
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.process_exits import ProcessExits, kill_if_stopped
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import RunRequestMessage, RunStateMessage, Service

if TYPE_CHECKING:
    from _typeshed import HasFileno

SOCKET: Final = "coordinator.sock"
"""Where it listens, in the run's directory; only its owner may connect."""
SHUTDOWN_TIMEOUT_S: Final = 15.0
"""How long processes may take to leave once the run is over, seconds."""


class CoordinatorProcess:
    """The coordinator of one run.

    Args:
        directory: The run's directory.
        attempt: Names this start of the run.
        watch: True if the run's progress is shown.
        forks: Forks the coordinator, if it can.
        public: Its address for other hosts; empty if there are none.
        has_own_host: True if one of the run's hosts is this one.
        log: The run's log of events.
        exits: Counts the ends of coordinators.

    Attributes:
        address: Address at which it listens, as gRPC names it.
        state: The newest state of the run; None before a coordinator has sent one.
        has_begun: True if enough hosts have joined, in this start of the run.
    """

    def __init__(
        self,
        directory: RunDirectory,
        attempt: str,
        log: EventLog,
        exits: ProcessExits,
        *,
        watch: bool,
        forks: Forker | None = None,
        public: str = "",
        has_own_host: bool = True,
    ) -> None:
        self._public = public
        self._has_own_host = has_own_host
        self._forks = forks
        self._link: CoordinatorLink[RunRequestMessage, RunStateMessage] | None = None
        self._directory = directory
        self._attempt = attempt
        self._log = log
        self._exits = exits
        self._request = RunRequestMessage(watch=watch)
        self.state: RunStateMessage | None = None
        self.has_begun = False
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
        self._link = CoordinatorLink(self.address, lambda channel: Service(channel).watch)
        self._link.send(self._request)

    def sources(self) -> Iterable[HasFileno]:
        """Sources that are readable when there is news."""
        return (self._child,) if self._link is None else (self._link, self._child)

    @property
    def is_over(self) -> bool:
        """True if the coordinator has said that the run is over."""
        return self.state is not None and self.state.stage == Stage.END

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

    def report_lost(self, host: str) -> None:
        """Tell the coordinator that an agent is gone for good."""
        self._say(self._request.model_copy(update={"lost": (*self._request.lost, host)}))

    def restart_if_ended(self) -> None:
        """Start another if this one has ended.

        Raises:
            HoldfastError: It failed by itself, or ends too often.
        """
        kill_if_stopped(self._child)
        if self._child.status is None:
            return
        if self._child.ended_with_fork_server:
            self._exits.note("coordinator", self._child)  # one failure, which the host counts
        else:
            self._exits.tolerate("coordinator", self._child)
        self.disconnect()  # what the last one has said may still be under way
        self._child = self._start()
        self._child.set_low_priority(enabled=True)  # no step waits for it
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
        options = {
            "run-dir": self._directory.path,
            "attempt": self._attempt,
            "address": self.address,
            "public": self._public,
            "joining": self._joining(),
            "collects": int(not self._has_own_host),
        }
        log = self._directory.logs / "coordinator.log"
        child = Child.start("holdfast.coordinator.main", options, log, forks=self._forks)
        self._log.event("coordinator-started", pid=child.pid)
        return child

    def _joining(self) -> int:
        """Number of hosts that may take part, without this one. One that an engine places may have
        its successor next to it.
        """
        hosts = self._directory.job.hosts
        return hosts - 1 if self._has_own_host else 2 * hosts

    def _end(self) -> None:
        """It ends by itself when a command that has heard of the end of the run leaves."""
        with suppress(HoldfastError):  # the run has ended as it has
            self._child.close(SHUTDOWN_TIMEOUT_S if self.is_over else 0)
        (self._directory.path / SOCKET).unlink(missing_ok=True)
