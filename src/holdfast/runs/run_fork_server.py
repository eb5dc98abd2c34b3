"""RunForkServer: the fork server of a run's local hosts, replaced when it dies."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

from holdfast.coordinator.policy import policy_of
from holdfast.core.failures import memory_advice, oom_killed
from holdfast.errors import HoldfastError, OutOfMemory
from holdfast.job.spec import Job
from holdfast.job.train_job import TrainJob
from holdfast.launch.child import Child
from holdfast.launch.fork_client import DIED, ForkServer
from holdfast.launch.spawn import WORKER, Spawned, spawn
from holdfast.linux.host_memory import OomKills, available
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import RunPaths
from holdfast.runs.process_exits import ProcessExits, kill_if_stopped
from holdfast.tasks import reference
from holdfast.tasks.code import located


def fork_server(
    job: Job, spawned: Spawned | None = None, code: bytes | None = None, run_dir: Path | None = None
) -> ForkServer:
    """A fork server for the workers of `job`, in a process that may have been started already.

    Args:
        job: The job.
        spawned: The process, if there is one.
        code: The job's task, if it comes by value.
        run_dir: A run directory, which may hold sources that came from another host.
    """
    needed = []  # a script must run in the workers only
    program = None
    if isinstance(job, TrainJob):
        needed = reference.imported_by(job.task, job.model)
        program = job.program
    named = _named(job, code)
    if run_dir is not None:
        needed = [located(each, run_dir) for each in needed]
    return ForkServer(spawned or spawn(WORKER), needed, job.library_variables, named, program)


def _named(job: Job, code: bytes | None) -> tuple[str, bytes] | None:
    return (job.task, code) if isinstance(job, TrainJob) and code is not None else None


class RunForkServer:
    """The fork server of one run, or one that it was lent, and those after it.

    Args:
        directory: The run's directory.
        log: The run's log of events.
        exits: Counts the ends of fork servers.
        given: The first one: a fork server that is lent, or one that this run starts to own.
        code: The job's task, if it comes by value.

    Attributes:
        current: The newest.
    """

    def __init__(
        self,
        directory: RunPaths,
        log: EventLog,
        exits: ProcessExits,
        given: ForkServer | Spawned | None,
        code: bytes | None,
    ) -> None:
        self._code = code
        self._directory = directory
        self._log = log
        self._exits = exits
        self._lent = given if isinstance(given, ForkServer) else None
        self._has_begun = False
        self._tolerated: Child | None = None
        self._oom_kills = OomKills()
        job = directory.job
        lent = self._lent
        # Libraries read variables when they are loaded, and modules stay: a lent server that has
        # loaded others cannot serve this job.
        has_all = (
            lent is not None
            and lent.variables == job.library_variables
            and (not isinstance(job, TrainJob) or lent.program == job.program)
        )
        if lent is not None and has_all and (code is None or lent.code == _named(job, code)):
            self.current = lent
        else:
            self.current = self._start(given if isinstance(given, Spawned) else None)

    def is_ready(self) -> bool:
        """True if it can fork; does not wait.

        Raises:
            HoldfastError: It takes too long to start.
        """
        ready = self.current.is_ready()
        self._has_begun |= ready
        return ready

    def has_ended(self, timeout_s: float) -> bool:
        """True if it has ended, or does so within this time."""
        self._oom_kills.look()
        kill_if_stopped(self.current.process)
        return self.current.process.await_end(timeout_s)

    def tolerate_end(self) -> None:
        """Note that it has ended, once.

        Raises:
            HoldfastError: Another would not do better, or they end too often.
        """
        ended = self.current.process
        if self._tolerated is ended:
            return
        for_memory = ended.status == -signal.SIGKILL and self._oom_kills.look()
        tolerant = policy_of(self._directory.job).max_failures > 0
        try:
            if not self._has_begun or (for_memory and not tolerant):
                raise HoldfastError(DIED)
            self._exits.tolerate("fork server", ended)
        except HoldfastError:
            if for_memory:
                killed = f"the fork server {oom_killed(available().limit)}"
                raise OutOfMemory(f"{killed}: {memory_advice()}") from None
            raise
        self._tolerated = ended

    def replace_if_ended(self) -> None:
        """Start another if this one has ended.

        Raises:
            HoldfastError: See `tolerate_end`.
        """
        if self.current.process.status is not None:
            self.tolerate_end()
            ended = self.current
            self.current = self._start(None)
            self._end(ended)

    def close(self) -> None:
        """End it, unless it was lent."""
        self._end(self.current)

    def _start(self, spawned: Spawned | None) -> ForkServer:
        server = fork_server(self._directory.job, spawned, self._code, self._directory.path)
        self._log.event("fork-server-started", pid=server.process.pid)
        return server

    def _end(self, server: ForkServer) -> None:
        if server is self._lent:
            return
        with suppress(HoldfastError):  # it may be stuck, and a run has ended as it has
            server.close()
        with suppress(OSError):  # the disk is full
            if output := server.output():
                with (self._directory.logs / "fork-server.log").open("ab") as log:
                    log.write(output)
