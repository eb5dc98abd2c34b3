"""The fork server: a process that has imported torch and forks workers.

A fork takes milliseconds; a cold start takes seconds. Only a single-threaded process can be forked
safely. So the fork server counts its threads. If the imports of a job have started any, it restarts
itself and leaves those imports to the workers.

The command owns it, and agents request forks: it outlives an agent, and kills the workers of an
agent that has ended. One that is lent to several runs also forks their coordinators and agents, at
the request of its owner, who gets their exit status by a pipe. Every process here asks the kernel
to kill it when its parent dies, so none outlives the command.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from holdfast.errors import JobError, ProtocolError
from holdfast.launch import forked
from holdfast.launch.collector import without_collector
from holdfast.linux.lifeline import INTERRUPT, STOP_SIGNALS, active_stop_signals, die_with_parent
from holdfast.wire.channel import Channel
from holdfast.wire.messages import (
    AttachMessage,
    ControlForkedMessage,
    ExitedMessage,
    ForkControlMessage,
    ForkedMessage,
    ForkMessage,
    PrepareMessage,
    ReadyMessage,
    WorkersReapedMessage,
)

_CRASHED: Final = 70


def main() -> None:
    """Serve until the command closes its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--code", type=int)
    options = parser.parse_args()
    die_with_parent(options.parent)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a line that a
    # worker prints is in its log before the worker dies
    for number in active_stop_signals():
        signal.signal(number, _leave_to_agent)
    signal.signal(INTERRUPT, signal.SIG_IGN)  # until a worker has a handler of its own
    with without_collector():
        entry = importlib.import_module(options.entry)
        entry.warm_up()
    assert forked.num_threads() == 1, "the imports started a thread; forking would not be safe"
    if options.code is not None:
        with open(options.code, "rb") as memory:  # noqa: PTH123  # a descriptor
            memory.seek(0)
            name, text = json.load(memory)
        entry.keep_task(name, base64.b64decode(text))
    _Server(Channel(socket.socket(fileno=options.socket)), entry, sys.argv[1:]).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(os.EX_OK)  # the interpreter would first free all modules, one after the other


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    rank: int
    pid: int
    pidfd: int


@dataclass(frozen=True, slots=True, eq=False)
class _Agent:
    channel: Channel
    workers: list[_Worker] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Control:
    pid: int
    pidfd: int
    status: int


class _Server:
    def __init__(self, owner: Channel, entry: Any, options: list[str]) -> None:
        self._owner = owner
        self._entry = entry
        self._options = options
        self._selector = selectors.DefaultSelector()
        self._selector.register(owner, selectors.EVENT_READ, self._hear_owner)
        self._agents: list[_Agent] = []
        self._controls: list[_Control] = []
        self._code: tuple[str, str] | None = None

    def run(self) -> None:
        self._owner.send(ReadyMessage())
        while not self._owner.at_end:
            for key, _ in self._selector.select():
                key.data()
        for agent in self._agents:
            self._end_all(agent)

    def _hear_owner(self) -> None:
        for message in self._owner.poll(0):
            match message:
                case ForkControlMessage():
                    self._fork_control(message)
                case PrepareMessage():
                    self._prepare(message)
                case AttachMessage():
                    channel = Channel(socket.socket(fileno=self._owner.take_fds(1)[0]))
                    agent = _Agent(channel)
                    self._agents.append(agent)
                    self._selector.register(
                        channel, selectors.EVENT_READ, partial(self._hear_agent, agent)
                    )
                    with contextlib.suppress(ConnectionError):  # the next read sees its end
                        channel.send(ReadyMessage())
                case _:
                    raise ProtocolError(f"the fork server cannot handle {message.kind!r}")

    def _hear_agent(self, agent: _Agent) -> None:
        for message in agent.channel.poll(0):
            if not isinstance(message, ForkMessage):
                raise ProtocolError(f"the fork server cannot handle {message.kind!r}")
            self._fork(agent, message, *agent.channel.take_fds(3))
        if agent.channel.at_end:
            self._selector.unregister(agent.channel)
            self._agents.remove(agent)
            self._end_all(agent)
            agent.channel.close()
            self._owner.send(WorkersReapedMessage())

    def _fork(self, agent: _Agent, request: ForkMessage, *fds: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(request, server, *fds)
        for fd in fds:
            os.close(fd)
        worker = _Worker(request.rank, pid, os.pidfd_open(pid))
        agent.workers.append(worker)
        self._selector.register(
            worker.pidfd, selectors.EVENT_READ, partial(self._reap, agent, worker)
        )
        with contextlib.suppress(ConnectionError):  # the next read sees the agent's end
            agent.channel.send(ForkedMessage(rank=request.rank, pid=pid), [worker.pidfd])

    def _fork_control(self, request: ForkControlMessage) -> None:
        output, status, *fds = self._owner.take_fds(2 + len(request.numbers))
        with without_collector():
            importlib.import_module(request.module)  # once, and not in each fork
        process = forked.ControlProcess(
            module=request.module,
            words=request.words,
            environment=request.environment,
            directory=Path(request.directory),
        )
        child = forked.fork(process, output, dict(zip(request.numbers, fds, strict=True)))
        assert child is not None, "the imports started a thread; forking is not safe"
        for fd in (output, *fds):
            os.close(fd)
        os.set_inheritable(status, False)
        control = _Control(child.pid, os.pidfd_open(child.pid), status)
        self._controls.append(control)
        self._selector.register(
            control.pidfd, selectors.EVENT_READ, partial(self._reap_control, control)
        )
        with contextlib.suppress(ConnectionError):  # the next read sees the owner's end
            self._owner.send(ControlForkedMessage(pid=control.pid), [control.pidfd])

    def _reap_control(self, control: _Control) -> None:
        self._controls.remove(control)
        self._selector.unregister(control.pidfd)
        os.close(control.pidfd)
        _, wait_status = os.waitpid(control.pid, 0)
        with contextlib.suppress(BrokenPipeError):  # its owner does not ask any more
            os.write(control.status, str(os.waitstatus_to_exitcode(wait_status)).encode())
        os.close(control.status)

    def _end_all(self, agent: _Agent) -> None:
        for worker in agent.workers:
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        for worker in list(agent.workers):
            self._reap(agent, worker)

    def _prepare(self, request: PrepareMessage) -> None:
        if any(os.environ.get(name) != value for name, value in request.variables.items()):
            assert not self._agents, "a fork server prepares before it forks"
            os.environ.update(request.variables)
            _start_over(self._options, self._code)  # which sends ReadyMessage again
        with without_collector():
            if request.code is not None:
                self._code = request.code
                self._entry.keep_task(request.code[0], base64.b64decode(request.code[1]))
            for needed in (*request.imports, *(request.code or ())[:1]):
                # Workers import it again and report the error.
                with contextlib.suppress(JobError):
                    self._entry.load_task(needed, request.program)
        if forked.num_threads() > 1:
            assert not self._agents, "a fork server prepares before it forks"
            _start_over(self._options, self._code)  # which sends ReadyMessage again
        self._owner.send(ReadyMessage())

    def _become_worker(
        self, request: ForkMessage, server: int, arena_fd: int, socket_fd: int, log_fd: int
    ) -> NoReturn:
        status = _CRASHED
        try:
            die_with_parent(server)
            os.setsid()  # the processes that it starts are in its group and end with it
            for fd in (arena_fd, socket_fd):  # received descriptors are inheritable
                os.set_inheritable(fd, False)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            for control in self._controls:
                os.close(control.status)
            self._selector.close()
            _let_children_end()
            os.dup2(log_fd, 1)
            os.dup2(log_fd, 2)
            os.close(log_fd)
            status = self._entry.main(request.config, arena_fd, socket_fd)
        except BaseException:  # noqa: BLE001  # the outermost frame of this process
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # user code may have put anything there
                    stream.flush()
            os._exit(status)

    def _reap(self, agent: _Agent, worker: _Worker) -> None:
        if worker not in agent.workers:
            return  # reaped with its agent, in the same round of events
        agent.workers.remove(worker)
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        with contextlib.suppress(ProcessLookupError):  # it was killed before setsid
            os.killpg(worker.pid, signal.SIGKILL)
        _, wait_status = os.waitpid(worker.pid, 0)
        status = os.waitstatus_to_exitcode(wait_status)
        with contextlib.suppress(ConnectionError):
            agent.channel.send(ExitedMessage(rank=worker.rank, pid=worker.pid, status=status))


def _leave_to_agent(*_: object) -> None:
    """Ignores a signal to the whole process tree: the agent makes workers save and stop."""


def _let_children_end() -> None:
    """Make processes that a task forks end by signals, from their first instruction on."""
    masks: dict[int, set[signal.Signals | int]] = {}  # by thread that is forking

    def before() -> None:
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def in_child() -> None:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is _leave_to_agent:
                signal.signal(number, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


def _start_over(options: list[str], code: tuple[str, str] | None) -> NoReturn:
    """Become a new process, which keeps the code but has not imported what it needs."""
    if code is not None:
        memory = os.memfd_create("code")
        os.set_inheritable(memory, True)
        os.write(memory, json.dumps(code).encode())
        options = [*options, "--code", str(memory)]
    os.execv(  # noqa: S606  # ourselves, without a shell
        sys.executable, [sys.executable, "-m", "holdfast.launch.fork_server", *options]
    )


if __name__ == "__main__":
    main()
