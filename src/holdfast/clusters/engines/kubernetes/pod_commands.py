"""PodCommands: one command in many pods at once, with the sources of this directory.

    sources ─▶ standard input of kubectl exec ─▶ the command in a folder of its own
    lines with the name of the pod ◀─ standard output and error
    the files that it has written ◀─ a second kubectl exec

A command ends when its standard input does: so none outlives this process.
"""

from __future__ import annotations

import hashlib
import secrets
import subprocess
import tempfile
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.clusters.engines.kubernetes import pod_program
from holdfast.clusters.engines.kubernetes.pod_program import END_S, MAX_BYTES
from holdfast.clusters.engines.kubernetes.pods import NOISE, PYTHON, Pods
from holdfast.errors import EngineError

OUTPUT: Final = "output.log"
"""In the folder of a pod: what its command has printed."""
LAST_LINES: Final = 5
GATHER_S: Final = 600.0
"""Time that a pod may take to send what its command has written."""
_MARGIN_S: Final = 15.0
_MAX_GATHERED: Final = 8
"""Pods that send at a time."""


class PodCommands:
    """Runs one command.

    Args:
        pods: Place of it.
        names: Names of the pods.
        packed: The sources, as a zip file.
        command: The words of the command.
        out: Gets a folder for each pod.
        say: Called with each line that a command prints, and the name of its pod.
    """

    def __init__(
        self,
        pods: Pods,
        names: Sequence[str],
        packed: bytes,
        command: Sequence[str],
        out: Path,
        say: Callable[[str, str], None],
    ) -> None:
        self._pods = pods
        self._out = out
        self._folder = f"holdfast-{secrets.token_hex(8)}"
        digest = hashlib.sha256(packed).hexdigest()
        words = self._program("run", digest, str(len(packed)), *command)
        self._commands = [
            _PodCommand(name, pods.command(name, *words), packed, out / name, say) for name in names
        ]

    def wait(self) -> None:
        """Wait until all have ended."""
        for command in self._commands:
            command.wait(None)

    def end(self) -> None:
        """End all of them: by SIGINT, and after END_S by SIGKILL."""
        for command in self._commands:
            command.close()
        deadline = time.monotonic() + END_S + _MARGIN_S
        for command in self._commands:
            command.wait(max(0.0, deadline - time.monotonic()))

    def statuses(self) -> dict[str, tuple[int, Sequence[str]]]:
        """The exit status of each, and the last lines that it has printed."""
        return {each.name: (each.status, list(each.last_lines)) for each in self._commands}

    def gather(self) -> dict[str, str]:
        """Fetch what the commands have written into the folders of their pods.

        Returns:
            What went wrong, by the name of the pod.
        """
        names = [command.name for command in self._commands]
        with ThreadPoolExecutor(_MAX_GATHERED) as pool:
            errors = dict(zip(names, pool.map(self._gather, names), strict=True))
        return {name: error for name, error in errors.items() if error}

    def _gather(self, name: str) -> str:
        words = self._pods.command(name, *self._program("gather"))
        with tempfile.TemporaryFile(dir=self._out) as file:
            try:
                done = subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    timeout=GATHER_S,
                    check=False,
                )
                if done.returncode:
                    return " ".join(done.stderr.decode(errors="replace").split())
                with zipfile.ZipFile(file) as archive:
                    if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
                        return "it has sent more than it may"
                    archive.extractall(self._out / name)  # which leaves no path outside of it
            except subprocess.TimeoutExpired:
                return f"it has not sent all within {GATHER_S:.0f} s"
            except (zipfile.BadZipFile, OSError) as error:
                return str(error)
        return ""

    def _program(self, action: str, *rest: str) -> list[str]:
        source = Path(pod_program.__file__).read_text(encoding="utf-8")
        return [PYTHON, "-c", source, action, self._folder, *rest]


class _PodCommand:
    """The command in one pod.

    Attributes:
        name: Name of the pod.
        status: Its exit status; that of kubectl if that has failed.
        last_lines: Newest lines of its output.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        packed: bytes,
        folder: Path,
        say: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.last_lines = deque[str](maxlen=LAST_LINES)
        self._packed = packed
        self._say = say
        folder.mkdir(parents=True)
        self._log = folder / OUTPUT
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends the commands, and not their connections
            )
        except OSError as error:
            raise EngineError(f"kubectl cannot be run: {error.strerror}") from None
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
        self._thread.start()

    @property
    def status(self) -> int:
        return self._process.wait()

    def close(self) -> None:
        """Have the command end."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until it has ended; after so long, end kubectl."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()

    def _follow(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # it has ended already, or was told to
            process.stdin.write(self._packed)
            process.stdin.flush()
        with self._log.open("wb") as log, process.stdout:
            for line in process.stdout:
                log.write(line)
                log.flush()
                text = line.decode(errors="replace").rstrip()
                if not text.startswith(NOISE):
                    self.last_lines.append(text)
                    self._say(self.name, text)
        process.wait()
        self.close()
