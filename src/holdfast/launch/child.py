"""Child: a process that a command starts and that never outlives it."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias

from holdfast.core.hangs import STOPPED_S
from holdfast.errors import HoldfastError
from holdfast.launch.forked import ControlProcess, ForkedProcess, LentProcess
from holdfast.linux.files import reserve
from holdfast.linux.process import stat_of

NICE: Final = 8
"""Nice value of a process that gives way: it gets a sixth of the CPU time of a competing one."""
KILL_TIMEOUT_S: Final = 30.0
"""Time that the kernel may take to end a process after SIGKILL."""
LAST_WORDS_BYTES: Final = 4096
"""Space for output on a disk that becomes full: why the process ends is in its log."""
LAST_LINE_BYTES: Final = 1 << 16
"""Bytes at the end of a log that are searched for its last line."""


Process: TypeAlias = subprocess.Popen[bytes] | ForkedProcess | LentProcess
"""A process that this one has started, or has had started."""


class Forker(Protocol):
    """A process that can become a control process by a fork: this one, or a fork server."""

    def fork_control(
        self, process: ControlProcess, output: int, fds: Collection[int]
    ) -> Process | None:
        """Fork it; None if that is not possible now.

        Args:
            process: Role of the fork.
            output: A descriptor for its output.
            fds: Descriptors that it inherits.
        """


class Child:
    """A process that has been started.

    Args:
        process: Ends when this process does.
        log: The file that its output goes to.
        begin: Position at which its output begins in that file, bytes.
        pidfd: Readable once it has ended; by default one is opened.
    """

    def __init__(
        self, process: Process, log: Path, begin: int = 0, pidfd: int | None = None
    ) -> None:
        self._process = process
        self._log = log
        self._begin = begin
        self._stopped_since = math.inf
        self._pidfd = os.pidfd_open(process.pid) if pidfd is None else pidfd
        self._open = ExitStack()
        self._open.callback(os.close, self._pidfd)

    @classmethod
    def start(
        cls,
        module: str,
        options: Mapping[str, object],
        log: Path,
        fds: Collection[int] = (),
        forks: Forker | None = None,
    ) -> Self:
        """Start a control process.

        Args:
            module: Name of the module whose `main` it runs.
            options: Options of its command line; `--parent` is added.
            log: The file for its output.
            fds: Descriptors that it inherits.
            forks: Forks it, if it can; by default it is executed.

        Raises:
            OSError: It cannot be started.
        """
        started = ControlProcess(
            module=module,
            words=tuple(f"--{name}={value}" for name, value in options.items()),
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            directory=Path.cwd(),
        )
        with log.open("ab") as output:
            begin = output.tell()
            reserve(output.fileno(), LAST_WORDS_BYTES)
            process = forks.fork_control(started, output.fileno(), fds) if forks else None
            if process is None:
                process = _executed(started, output.fileno(), fds)
        pidfd = process.pidfd if isinstance(process, LentProcess) else None
        return cls(process, log, begin, pidfd)

    def fileno(self) -> int:
        """A descriptor that `select` finds readable once the process has ended."""
        return self._pidfd

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status once it has ended; the negative number of a signal that killed it."""
        return self._process.poll()

    @property
    def ended_with_fork_server(self) -> bool:
        """True if it was killed because it was a fork of a fork server that has ended."""
        lent = self._process
        return self.status is not None and isinstance(lent, LentProcess) and lent.ended_with_server

    def is_stopped(self) -> bool:
        """True if it has been stopped by a signal (SIGSTOP) for longer than STOPPED_S.

        To the other processes that is the same as its death.
        """
        stat = stat_of(self.pid)
        stopped = stat is not None and stat.is_stopped
        self._stopped_since = min(self._stopped_since, time.monotonic()) if stopped else math.inf
        return time.monotonic() - self._stopped_since > STOPPED_S

    def set_low_priority(self, *, enabled: bool) -> None:
        """Lower its priority, or restore it.

        This uses its autogroup (see sched(7)), if the kernel has them: without privileges neither
        a process nor its threads could lower a nice value again.
        """
        with suppress(OSError):  # it has ended, or there are no autogroups
            nice = str(NICE if enabled else 0)
            Path(f"/proc/{self.pid}/autogroup").write_text(nice, encoding="ascii")

    def kill(self) -> None:
        """Kill it, and do not wait for its end."""
        self._process.kill()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def last_output_line(self) -> str:
        """The last line that it has printed; empty if it has printed none."""
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(max(self._begin, self._log.stat().st_size - LAST_LINE_BYTES))
            if lines := file.read().decode(errors="replace").splitlines():
                return lines[-1]
        return ""

    def await_end(self, timeout_s: float) -> bool:
        """Wait for it to end by itself; returns whether it has ended."""
        end = select.poll()
        end.register(self._pidfd, select.POLLIN)
        return self.status is not None or (
            bool(end.poll(1000 * timeout_s)) and self.status is not None
        )

    def close(self, timeout_s: float = 0) -> None:
        """Wait for it to end by itself, then kill it.

        Raises:
            HoldfastError: It has not ended after SIGKILL.
        """
        with self._open:
            if self.await_end(timeout_s):
                return
            self._process.kill()
            if not self.await_end(KILL_TIMEOUT_S):
                raise HoldfastError(
                    f"process {self.pid} has not ended {KILL_TIMEOUT_S:.0f} s after SIGKILL; a "
                    "disk may hang. Resume the run from its last checkpoint on another host"
                )


def _executed(process: ControlProcess, output: int, fds: Collection[int]) -> Process:
    """Execute a new interpreter."""
    words = [*process.words, f"--parent={os.getpid()}"]
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.launch.control", process.module, *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=fds,
        env=process.environment,
        start_new_session=True,  # Ctrl-C is for the command
    )
