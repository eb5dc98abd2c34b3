"""ProcessExits: how the control processes of a run have ended, and how often they may."""

from __future__ import annotations

import errno
import os
import time

from holdfast.core.failures import describe
from holdfast.core.restart_budget import SlidingWindow
from holdfast.errors import HoldfastError
from holdfast.job.settings import Restarts
from holdfast.launch.child import Child
from holdfast.rundir.json_lines import EventLog


class ProcessExits:
    """Logs the exits of one run's agents, coordinators and fork servers, and counts them.

    Args:
        limits: Limits within which they are tolerated.
        log: The run's log of events.
    """

    def __init__(self, limits: Restarts, log: EventLog) -> None:
        self._log = log
        self._limits = limits
        self._window = SlidingWindow(limits.limit, limits.window_s)

    def note(self, what: str, child: Child) -> None:
        """Log an exit that does not count."""
        child.close()
        status = child.status
        assert status is not None, "it has been closed"
        name = f"{what.replace(' ', '-')}-exited"
        self._log.event(name, pid=child.pid, status=status, cause=describe(status))

    def tolerate(self, what: str, child: Child) -> None:
        """Log an exit and count it, unless the status is 0: an agent may leave before this process
        hears that the run is over.

        Raises:
            HoldfastError: The process failed by itself, or there were too many exits.
        """
        self.note(what, child)
        assert child.status is not None
        # A process that exits by itself would do so again. One that was killed is worth a try.
        if child.status > 0:
            words = (
                child.last_output_line()
                or f"the {what} exited with status {child.status} and no message"
            )
            if os.strerror(errno.EMFILE) in words:
                words += "; raise the limit of open files (ulimit -n) and resume the run"
            raise HoldfastError(words)
        if child.status and not self._window.admit(time.monotonic()):
            raise HoldfastError(
                f"the {what} ended: more than {self._limits.limit} exits of agents, coordinators "
                f"and fork servers in {self._limits.window_s:.0f} s; resume the run from its last "
                "checkpoint"
            )


def kill_if_stopped(child: Child) -> None:
    """Kill a process that was stopped (SIGSTOP) for long: the others cannot wait for it."""
    if child.is_stopped():
        child.kill()
