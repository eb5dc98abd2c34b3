"""The fork server: a process that has imported torch and does nothing but fork workers.

A fork of it takes milliseconds where a cold start takes seconds. It is single-threaded and stays
so, for only such a process can be forked safely: it counts its own threads, and where importing
what the workers need has started any, it starts over and leaves those imports to the workers.

Every process here asks the kernel to kill it when its parent dies, so none outlives the agent.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from holdfast.errors import JobError, ProtocolError
from holdfast.tasks import reference
from holdfast.wire.channel import Channel
from holdfast.wire.lifeline import STOP_SIGNALS, die_with_parent
from holdfast.wire.messages import Exited, Fork, Forked, Prepare, Ready

_CRASHED: Final = 70


def main() -> None:
    """Serve until the agent closes its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--entry", required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a line that a worker
    # prints is to be in its log before it dies, and to be seen by those who follow the log
    _on_signals(lambda *_: None)
    entry = importlib.import_module(options.entry)
    entry.warm_up()
    assert _num_threads() == 1, "something started a thread; forking would not be safe"
    _Server(Channel(socket.socket(fileno=options.socket)), entry.main).run()


class _Server:
    def __init__(self, channel: Channel, entry: Callable[[str, int, int], int]) -> None:
        self._channel, self._entry = channel, entry
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, None)

    def run(self) -> None:
        self._channel.send(Ready())
        while not self._channel.at_end:
            for key, _ in self._selector.select():
                if key.data is None:
                    for message in self._channel.poll(0):
                        self._handle(message)
                else:
                    self._reap(key.fd, *key.data)

    def _handle(self, message: Any) -> None:
        if isinstance(message, Prepare):
            self._prepare(message)
            return
        if not isinstance(message, Fork):
            raise ProtocolError(f"the fork server cannot handle {message.kind!r}")
        fds = self._channel.take_fds(3)
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(message, server, *fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, (message.rank, pid))
        self._channel.send(Forked(rank=message.rank, pid=pid), [pidfd])

    def _prepare(self, wish: Prepare) -> None:
        for needed in wish.imports:
            # What cannot be imported is reported by the workers, which try again.
            with contextlib.suppress(JobError):
                reference.load(needed)
        if _num_threads() > 1:
            _start_over()  # and say then that we are ready
        self._channel.send(Ready())

    def _become_worker(
        self, orders: Fork, server: int, arena_fd: int, socket_fd: int, log_fd: int
    ) -> NoReturn:
        status = _CRASHED
        try:
            die_with_parent(server)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            _let_children_end()
            os.dup2(log_fd, 1)
            os.dup2(log_fd, 2)
            os.close(log_fd)
            status = self._entry(orders.config, arena_fd, socket_fd)
        except BaseException:  # noqa: BLE001  # the end of this process: nobody above reports it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, pidfd: int, rank: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ConnectionError):  # the agent has left, and so shall we
            self._channel.send(Exited(rank=rank, pid=pid, status=os.waitstatus_to_exitcode(status)))


def _on_signals(handler: signal.Handlers | Callable[..., None]) -> None:
    """Handle so what, sent to the whole tree, is for the agent: it has the workers save and end."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def _let_children_end() -> None:
    """Have what a task forks end when the task tells it to, however early."""
    mask, signals = signal.pthread_sigmask, set(STOP_SIGNALS)

    def in_child() -> None:
        _on_signals(signal.SIG_DFL)
        mask(signal.SIG_UNBLOCK, signals)

    os.register_at_fork(
        before=lambda: mask(signal.SIG_BLOCK, signals),
        after_in_parent=lambda: mask(signal.SIG_UNBLOCK, signals),
        after_in_child=in_child,
    )


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _start_over() -> NoReturn:
    os.execv(  # noqa: S606  # ourselves, without a shell
        sys.executable, [sys.executable, "-m", "holdfast.agent.fork_server", *sys.argv[1:]]
    )


if __name__ == "__main__":
    main()
