"""Supervision: a run's coordinator, agent and fork server, processes beside this one that may die.

    this process ── Wishes ───▶ coordinator ◀── Reports ─── agent ──▶ fork server ──▶ workers
                 ◀─ RunStates ─             ─── Commands ─▶

A coordinator that is killed is started again, and reads its journal. An agent that is killed takes
its workers with it, and is a lost host; the one in its place has another name. A fork server takes
them with it too, and its agent can do nothing without it: both are replaced.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from holdfast import errors
from holdfast.checkpoint import manifest
from holdfast.coordinator.policy import policy_of
from holdfast.core.failures import describe, oom_killed
from holdfast.core.protocol import Stage
from holdfast.core.restart_budget import SlidingWindow
from holdfast.engines.controls import Controls
from holdfast.engines.host import Host
from holdfast.errors import HoldfastError, Interrupted, OutOfMemory, WorkerFailed
from holdfast.job.spec import Job
from holdfast.launch.child import Child
from holdfast.launch.fork_client import DIED, ForkServer
from holdfast.launch.spawn import WORKER, Spawned, spawn
from holdfast.linux.host_memory import OomKills, available
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import RunDirectory
from holdfast.tasks import reference
from holdfast.wire.link import CoordinatorLink
from holdfast.wire.rpc import RunRequestMessage, RunStateMessage, Service

SOCKET: Final = "coordinator.sock"
"""Where it listens, in the run's directory; only its owner may connect."""
TICK_S: Final = 0.1
"""How often progress is shown and controls are looked at."""
LEAVE_TIMEOUT_S: Final = 15.0
"""How long an agent may take to leave once the run is over."""
LAST_WORD_S: Final = 5.0
"""How long the word that the run is over may come after the end of an agent that had it."""
REAP_TIMEOUT_S: Final = 1.0
"""How long the end of a fork server may come after that of an agent which has lost it."""


class ProcessSupervisor:
    """Of one run; ends with the `with` block, and then nothing of the run is left running.

    Args:
        job: What is to be done.
        directory: Where it leaves what is to last.
        forks: A fork server to begin with; this run's own where it is only on its way.
        log: The run's log of events.
        controls: How to stop it.
    """

    def __init__(
        self,
        job: Job,
        directory: RunDirectory,
        forks: ForkServer | Spawned | None,
        log: EventLog,
        controls: Controls,
    ) -> None:
        self._job, self._directory, self._given = job, directory, forks
        self._log, self._controls = log, controls
        self._budget = SlidingWindow(job.restarts.limit, job.restarts.window_s)
        self._attempt = secrets.token_hex(4)  # names what is half written, and never again
        self._oom_kills = OomKills()
        self._state: RunStateMessage | None = None
        self._wishes, self._agents = RunRequestMessage(), 0
        self._begun = False  # whether any fork server has become ready
        self._stop_deadline: float | None = None
        self._owned = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def result(self) -> dict[str, Any]:
        """Bring the run to its end; returns what a worker reports then.

        Raises:
            WorkerFailed: A worker died or its code raised, and that is not forgiven.
            HoldfastError: Anything else that ended the run.
        """
        self._start()
        while not self._over:
            self._await_news()
            self._show()
            if not self._over:
                self._check_controls()
                self._mend()
        end, deadline = self._state, time.monotonic() + LEAVE_TIMEOUT_S
        with suppress(HoldfastError):  # the run has ended as it has
            while self._host.is_at_work and time.monotonic() < deadline:
                self._await_news()
                self._mend_coordinator()  # the agent may not have heard of that yet
        self._show()
        assert end is not None
        if end.reason:
            raise self._error(end)
        assert end.result is not None, "all have finished and nobody has a result"
        return end.result

    def _error(self, state: RunStateMessage) -> HoldfastError:
        """What ended the run."""
        advice = _advice(self._directory.checkpoints)
        if state.root_cause is None:
            return HoldfastError(state.reason + advice)
        rank, failure = state.root_cause
        if failure.error:
            return errors.BY_NAME[failure.error](failure.cause)
        return WorkerFailed(state.reason + advice, rank=rank, traceback=failure.traceback or None)

    @property
    def _over(self) -> bool:
        return self._state is not None and self._state.stage == Stage.END

    def _await_news(self) -> None:
        """Wait until something has happened, or it is time to look at what nobody tells."""
        news = select.poll()  # select itself refuses the descriptors of a large program
        for each in (self._link, self._coordinator, self._host.agent, self._forks):
            news.register(each, select.POLLIN)
        news.poll(1000 * TICK_S)
        state = self._link.heard()
        if state is not None and self._state is None:  # it is up
            self._coordinator.give_way(gives=False)
        self._state = state or self._state

    def _start(self) -> None:
        """Start all that the run needs; torch is being imported meanwhile."""
        given = self._given
        if isinstance(given, ForkServer):
            fits = given.variables == self._job.library_variables
            self._forks = given if fits else self._start_forks(None)
        else:
            self._forks = self._start_forks(given)
        self._owned.callback(lambda: self._end_forks(self._forks))
        # The path to a socket must be short, and that to a run's directory need not be.
        folder = os.open(self._directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._owned.callback(os.close, folder)
        self._address = f"unix:/proc/{os.getpid()}/fd/{folder}/{SOCKET}"
        self._coordinator = self._start_coordinator()
        self._owned.callback(self._end_coordinator)
        self._host = self._start_host()
        self._owned.callback(self._end_host)
        self._link = self._start_link()
        self._owned.callback(self._end_link)

    def _start_forks(self, spawned: Spawned | None) -> ForkServer:
        imports, variables = reference.of_job(self._job), self._job.library_variables
        forks = ForkServer(spawned or spawn(WORKER), imports, variables)
        self._log.event("fork-server-started", pid=forks.process.pid)
        return forks

    def _end_forks(self, forks: ForkServer) -> None:
        """It belongs to this run, unless it was lent."""
        if forks is self._given:
            return
        with suppress(HoldfastError):  # it may be stuck, and a run has ended as it has
            forks.close()
        with suppress(OSError):  # the disk is full
            if output := forks.output():
                with (self._directory.logs / "fork-server.log").open("ab") as log:
                    log.write(output)

    def _start_coordinator(self) -> Child:
        options = {
            "run-dir": self._directory.path,
            "attempt": self._attempt,
            "address": self._address,
        }
        self._state = None  # it has told us nothing yet
        log = self._directory.logs / "coordinator.log"
        coordinator = Child.start("holdfast.coordinator.main", options, log)
        self._log.event("coordinator-started", pid=coordinator.pid)
        return coordinator

    def _end_coordinator(self) -> None:
        """It ends by itself when whoever has heard from it of the end of the run leaves."""
        with suppress(HoldfastError):  # the run has ended as it has
            self._coordinator.close(LEAVE_TIMEOUT_S if self._over else 0)
        (self._directory.path / SOCKET).unlink(missing_ok=True)

    def _start_link(self) -> CoordinatorLink[RunRequestMessage, RunStateMessage]:
        link = CoordinatorLink[RunRequestMessage, RunStateMessage](
            self._address, lambda each: Service(each).watch
        )
        link.say(self._wishes)
        return link

    def _end_link(self) -> None:
        self._link.close()

    def _start_host(self) -> Host:
        self._agents += 1
        name = f"local-{self._agents}"
        host = Host(name, self._attempt, self._job.workers, self._directory, self._address)
        self._log.event("agent-started", host=name, pid=host.agent.pid)
        return host

    def _end_host(self) -> None:
        with suppress(HoldfastError):  # the run has ended as it has
            self._host.close()

    def _mend(self) -> None:
        """Replace what has died, and put to work what is ready."""
        self._oom_kills.look()
        self._mend_coordinator()
        agent, forks = self._host.agent, self._forks.process
        _end_if_stopped(agent)
        _end_if_stopped(forks)
        if forks.await_end(REAP_TIMEOUT_S if agent.status == 1 else 0):
            self._mend_forks()
        elif agent.status is not None and not (agent.status == 0 and self._ends()):
            self._forgive("agent", agent)
            self._replace_host()
        if not self._host.attached and self._forks.is_ready():
            self._host.attach(self._forks)
            self._begun = True

    def _ends(self) -> bool:
        """Whether the run is over, of which an agent that has left as told may have heard first."""
        deadline, news = time.monotonic() + LAST_WORD_S, select.poll()
        news.register(self._link, select.POLLIN)
        while not self._over and time.monotonic() < deadline:
            news.poll(1000 * TICK_S)
            self._state = self._link.heard() or self._state
        return self._over

    def _mend_forks(self) -> None:
        """Replace the fork server, and with it the agent, which has lost its workers."""
        ended = self._forks.process
        for_memory = ended.status == -signal.SIGKILL and self._oom_kills.look()
        forgives = policy_of(self._job).max_failures > 0
        try:
            if not self._begun or (for_memory and not forgives):
                raise HoldfastError(DIED)
            self._forgive("fork server", ended)
        except HoldfastError:
            if for_memory:
                raise OutOfMemory(oom_killed("the fork server", available().limit)) from None
            raise
        self._note_end("agent", self._host.agent)
        self._replace_host()
        lost, self._forks = self._forks, self._start_forks(None)
        self._end_forks(lost)

    def _replace_host(self) -> None:
        self._host.close()
        lost = (*self._wishes.lost, self._host.name)
        self._wishes = self._wishes.model_copy(update={"lost": lost})
        self._link.say(self._wishes)
        self._host = self._start_host()

    def _mend_coordinator(self) -> None:
        _end_if_stopped(self._coordinator)
        if self._coordinator.status is not None:
            self._forgive("coordinator", self._coordinator)
            self._end_link()  # what the last one has said may still be under way
            self._coordinator = self._start_coordinator()
            self._coordinator.give_way(gives=True)  # no step waits for it: none is to be slower
            self._link = self._start_link()

    def _forgive(self, what: str, child: Child) -> None:
        """Take note of an end, unless it was its own doing or came once too often.

        Who left as told is no loss: an agent may hear before this process that the run is over.
        """
        self._note_end(what, child)
        assert child.status is not None
        if child.status > 0:
            words = child.last_words() or f"the {what} exited {child.status} without a word"
            raise HoldfastError(words)
        if child.status and not self._budget.admit(time.monotonic()):
            limits = self._job.restarts
            raise HoldfastError(
                f"the {what} ended, the last of more than {limits.limit} ends of agents, "
                f"coordinators and fork servers in {limits.window_s:.0f} s; resume the run from "
                "its last checkpoint"
            )

    def _note_end(self, what: str, child: Child) -> None:
        child.close()
        status = child.status
        assert status is not None, "it has been closed"
        name = f"{what.replace(' ', '-')}-exited"
        self._log.event(name, pid=child.pid, status=status, cause=describe(status))

    def _show(self) -> None:
        if self._controls.watch is not None:
            try:
                self._controls.watch(self._host.arena)
            except OSError:  # the terminal has been closed: nobody is left to show anything to
                self._controls.watch = None

    def _check_controls(self) -> None:
        if self._controls.abort:
            doing = self._forks.doing
            at = f" while the fork server was {doing}" if doing else ""
            raise Interrupted(f"the run was aborted{at}; resume it from its last checkpoint")
        now = time.monotonic()
        if self._controls.stop and self._stop_deadline is None and self._begun:
            self._wishes = self._wishes.model_copy(update={"stop": True})
            self._link.say(self._wishes)
            self._stop_deadline = now + self._job.timeout_s
            self._log.event("stop-requested")
        if self._stop_deadline is not None and now > self._stop_deadline:
            raise Interrupted(
                f"the workers did not end their step within {self._job.timeout_s:.0f} s of being "
                "asked to stop; resume the run from its last checkpoint, with a longer timeout_s "
                "if a step or an evaluation may take that long"
            )


def _advice(checkpoints: Path) -> str:
    """Where a run can go on that has failed, if anywhere."""
    found = manifest.committed(checkpoints)
    step = manifest.step_of(found[0]) if found else 0
    return f"; resume the run from its last checkpoint, of step {step}" if found else ""


def _end_if_stopped(child: Child) -> None:
    if child.is_stopped():
        child.kill()
