"""Forked: a coordinator or an agent that is a fork of a process which has imported what it needs.

    command ──────────────▶ coordinator, agent     while the command has one thread
    lent fork server ─────▶ coordinator, agent     see `launch.fork_server`

A fork takes a few milliseconds; a new interpreter takes half a second to import the same modules.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from holdfast.launch import control
from holdfast.linux.lifeline import STOP_SIGNALS, leave_signals_to_parent

REAP_TIMEOUT_S: Final = 5.0
"""Time that a fork server may take to report the exit status of a process that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProcess:
    """A coordinator or an agent that is to be started.

    Attributes:
        module: Name of the module whose `main` it runs.
        words: Its command line, without `--parent`.
        environment: Its environment.
        directory: Its working directory.
    """

    module: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    directory: Path


class ForkedProcess:
    """A child of this process; what `subprocess.Popen` is to one that was executed.

    Args:
        pid: Its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its exit status once it has ended; the negative number of a signal that killed it."""
        if self._status is None:
            ended, wait_status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._status = os.waitstatus_to_exitcode(wait_status)
        return self._status

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def num_threads() -> int:
    """The number of threads of this process; with more than one, a fork is not safe."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # the names are not used


def fork(process: ControlProcess, output: int, fds: Mapping[int, int]) -> ForkedProcess | None:
    """Fork this process; None if it has threads.

    Args:
        process: Role of the fork.
        output: A descriptor for its output.
        fds: Descriptors that it inherits, by the numbers that it knows them by.
    """
    if num_threads() > 1:
        return None
    parent = os.getpid()
    # A signal to this process must not run its handlers in the fork.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            become(process, parent, output, fds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ForkedProcess(pid)


def become(process: ControlProcess, parent: int, output: int, fds: Mapping[int, int]) -> NoReturn:
    """Become a control process, in a fork. Nothing of the parent's code runs after this.

    Args:
        process: Role to take.
        parent: Process id of the parent.
        output: A descriptor for its output.
        fds: Descriptors that it inherits, by the numbers that it knows them by.
    """
    try:
        # Objects of the parent that would be collected here could close descriptors of this
        # process, which get the same numbers.
        gc.freeze()
        _inherited = (sys.stdin, sys.stdout, sys.stderr)  # what they have buffered is the parent's
        os.setsid()  # Ctrl-C is for the command
        _reset_signals()
        for number in (1, 2):  # first, so that all that goes wrong is in its log
            os.dup2(output, number)
        _open_streams()
        _keep_only(fds)
        os.chdir(process.directory)
        os.environ.clear()
        os.environ.update(process.environment)
        control.run(process.module, [*process.words, f"--parent={parent}"])
    except BaseException:  # noqa: BLE001  # the outermost frame of this process
        traceback.print_exc()
    finally:
        os._exit(control.CRASHED)


def _reset_signals() -> None:
    """Replace the parent's handlers; what is blocked is delivered to what is set here."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    leave_signals_to_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _keep_only(fds: Mapping[int, int]) -> None:
    """Move `fds` to their numbers, open an empty standard input, and close all others."""
    is_open = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    # No number from here on is wanted. One that is open may be above the limit of this process.
    free = 1 + max([2, *fds])
    kept = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for number, fd in fds.items()}
    for fd in {*is_open} - {1, 2, *kept.values()}:
        with suppress(OSError):  # of the directory that was listed
            os.close(fd)
    os.open(os.devnull, os.O_RDONLY)  # gets the number 0
    for number, fd in kept.items():
        os.dup2(fd, number, inheritable=False)
        os.close(fd)


def _open_streams() -> None:
    """Replace the standard streams of the parent, which it may have replaced or written to."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )


class LentProcess:
    """A child of a fork server, as its user sees it; see `launch.child.Process`.

    Args:
        pid: Its process id.
        pidfd: Readable once it has ended; the caller closes it.
        status: A pipe that the fork server writes the exit status to, and that ends with the fork
            server.

    Attributes:
        ended_with_server: True if it was killed because the fork server has ended.
    """

    def __init__(self, pid: int, pidfd: int, status: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._pipe = status
        self._status: int | None = None
        self.ended_with_server = False

    def poll(self) -> int | None:
        """Its exit status once it has ended; the negative number of a signal that killed it."""
        if self._status is None and _is_readable(self.pidfd, 0):
            written = os.read(self._pipe, 16) if _is_readable(self._pipe, REAP_TIMEOUT_S) else b""
            os.close(self._pipe)
            # A fork server that has died takes its forks with it, and cannot say so.
            self.ended_with_server = not written
            self._status = int(written or -signal.SIGKILL)
        return self._status

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._status is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def _is_readable(fd: int, timeout_s: float) -> bool:
    source = select.poll()
    source.register(fd, select.POLLIN)
    return bool(source.poll(1000 * timeout_s))
