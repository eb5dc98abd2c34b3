"""Child: a process of ours beside the command, which outlives neither its use nor the command."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

WORDS_BYTES = 1 << 16
"""How much of the end of a log is looked at for last words."""


class Child:
    """Runs the `main` of a module.

    Args:
        module: Its name.
        options: For its command line, beside `--parent`.
        log: The file for what it prints.
        fds: Descriptors that it inherits.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, module: str, options: Mapping[str, object], log: Path, fds: Collection[int] = ()
    ) -> None:
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._log = log
        with log.open("ab") as output:
            self._begin = output.tell()  # what others have printed is before
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *words, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=fds,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the command
            )

        self._stopped_since = math.inf
        self._pidfd = os.pidfd_open(self._process.pid)
        self._open = ExitStack()
        self._open.callback(os.close, self._pidfd)

    def fileno(self) -> int:
        """Readable, for `select`, once it has ended."""
        return self._pidfd

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status once it has ended; the negative number of a signal that killed it."""
        return self._process.poll()

    def stopped_for(self, now: float) -> float:
        """How long it has been seen to stand still because of a signal (SIGSTOP), seconds.

        See proc_pid_stat(5). `now` is monotonic seconds.
        """
        stopped = False
        with suppress(OSError):  # it is gone
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
            stopped = text.rpartition(")")[2].split()[0] == "T"
        if not stopped:
            self._stopped_since = math.inf
        elif self._stopped_since == math.inf:
            self._stopped_since = now
        return max(0.0, now - self._stopped_since)

    def kill(self) -> None:
        """End it at once, and let others find out."""
        self._process.kill()

    def last_words(self) -> str:
        """The last line that it has printed."""
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(max(self._begin, self._log.stat().st_size - WORDS_BYTES))
            if lines := file.read().decode(errors="replace").splitlines():
                return lines[-1]
        return f"it exited {self.status} and left no word in {self._log}"

    def await_end(self, timeout_s: float) -> None:
        """Give it this long to end by itself; then end it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.close()

    def close(self) -> None:
        """End it at once."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._open.close()
