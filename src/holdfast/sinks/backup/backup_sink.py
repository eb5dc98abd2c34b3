"""BackupSink: starts the process that copies a run, and waits for it at the end of the run."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.checkpoint.remote.open import open_store
from holdfast.job.settings import BackupSettings
from holdfast.record.sink import Ending, Sink
from holdfast.sinks.backup.uploader import BackupProgress
from holdfast.sinks.transfers import TransferView
from holdfast.wire.rpc import RunStateMessage

STALL_S: Final = 60.0
"""Most time that the end of a run waits for a backup without progress."""
RESTART_S: Final = 30.0
"""The pause before a process that has exited is started again."""
LOWEST_PRIORITY: Final = 19
_TICK_S: Final = 0.1
_MAX_READ: Final = 1 << 16
LOG: Final = "backup.log"


class BackupSink(Sink):
    """The process that copies one run, as the command has it.

    Args:
        settings: The backup that the job wants.
        environment: Variables of the process.
        run_dir: The run's directory.
        tell: Called with a line for people.
        is_aborted: Says whether the run was ended at once, so that nothing waits.

    Raises:
        JobError: There is no such kind of store, or its library is not installed.
    """

    def __init__(
        self,
        settings: BackupSettings,
        environment: Mapping[str, str],
        run_dir: Path,
        tell: Callable[[str], None],
        is_aborted: Callable[[], bool],
    ) -> None:
        open_store(settings.to, environment)  # refuse before the run begins
        self._to = settings.to
        self._run_dir = run_dir
        self._tell = tell
        self._is_aborted = is_aborted
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._partial = b""
        self._progress = BackupProgress()

    def on_progress(self, _: RunStateMessage) -> None:
        """Start with the run. The process logs what happens, so it is only kept alive here."""
        if self._process is None:
            self._start()
        elif self._process.poll() is None:
            self._read(0)
        elif time.monotonic() - self._started_at > RESTART_S:
            self._close_pipes()
            self._start()

    def close(self, ending: Ending | None) -> None:
        """Wait until the run's newest checkpoint is copied, or the store makes no progress."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        why = "the command was interrupted"
        try:
            if ending is not None and not self._is_aborted():
                why = self._await_copy(process)
        except KeyboardInterrupt:  # of the wait: the run is over
            pass
        finally:
            process.kill()
            process.wait()
            self._close_pipes()
        if why:
            self._tell(
                f"holdfast: the backup in {self._to} has not got the end of the run: {why}; what "
                f"is missing there is in {self._run_dir}, and --resume copies it"
            )

    def _await_copy(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until all is copied; returns why it is not, if so."""
        heard_at = time.monotonic()
        with TransferView() as view:
            while process.poll() is None and time.monotonic() - heard_at < STALL_S:
                for progress in self._read(_TICK_S):
                    if progress.trouble and progress.trouble != self._progress.trouble:
                        self._tell(f"holdfast: waiting for the backup: {progress.trouble}")
                    self._progress = progress
                    if not progress.trouble:
                        heard_at = time.monotonic()
                        what = f"copying the checkpoint of step {progress.step} to {self._to}"
                        view.report(what, progress.done_bytes, progress.size_bytes)
        if process.returncode == 0:
            return ""
        how = "it makes no progress" if process.returncode is None else "its process has failed"
        return self._progress.trouble or f"{how}; see {self._run_dir / 'logs' / LOG}"

    def _start(self) -> None:
        self._started_at = time.monotonic()
        words = [sys.executable, "-m", "holdfast.sinks.backup.copy_process"]
        with suppress(OSError), (self._run_dir / "logs" / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [*words, str(self._run_dir), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST_PRIORITY)

    def _read(self, timeout_s: float) -> list[BackupProgress]:
        """Reports of the process since the last call."""
        assert self._process is not None
        assert self._process.stdout is not None
        found = list[BackupProgress]()
        news = select.poll()
        news.register(self._process.stdout, select.POLLIN)
        while news.poll(1000 * timeout_s):
            data = os.read(self._process.stdout.fileno(), _MAX_READ)
            if not data:
                break
            *whole, self._partial = (self._partial + data).split(b"\n")
            found += [BackupProgress.of(line) for line in whole]
            timeout_s = 0
        return found

    def _close_pipes(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._partial = b""
