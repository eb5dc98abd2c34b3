"""The agent's end of the fork server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from holdfast.errors import HoldfastError
from holdfast.wire.channel import pair
from holdfast.wire.messages import AnyMessage, Fork, Forked, Ready

START_TIMEOUT_S: Final = 120.0
FORK_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 5.0

WORKER_ENVIRONMENT: Final = {
    # One thread until a worker sets its own number: a process with threads must not be forked.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc's defaults give freed gradients back to the kernel and fault them in again, each step.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
}


class ForkServer:
    """A running fork server; ends with the `with` block.

    Args:
        entry: The module whose `main` the forks call, and whose `warm_up` is called before.
        imports: References to what the forks will import, done beforehand where that is safe.
        log: Where the fork server itself writes.

    Attributes:
        channel: To it.
        log: As given.

    Raises:
        HoldfastError: It did not come up.
    """

    def __init__(self, entry: str, imports: Iterable[str], log: Path) -> None:
        self.log = log
        self._pending: list[AnyMessage] = []
        self.channel, far = pair()
        arguments = ["--socket", str(far.fileno()), "--parent", str(os.getpid()), "--entry", entry]
        for needed in imports:
            arguments += ["--import", needed]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.agent.fork_server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[far.fileno()],
                env={**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": path},
                start_new_session=True,
            )
        far.close()
        try:
            self._await(Ready, START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, rank: int, config: str, fds: tuple[int, int, int]) -> tuple[int, int]:
        """Fork a worker; returns its process id and a pidfd, which is the caller's to close.

        Args:
            rank: Its rank.
            config: Passed to the entry.
            fds: The arena, the worker's socket, its log; copies go to the worker.

        Raises:
            HoldfastError: The fork server is gone.
        """
        try:
            self.channel.send(Fork(rank=rank, config=config), fds)
        except BrokenPipeError:
            raise HoldfastError(f"the fork server died; see {self.log}") from None
        forked = self._await(Forked, FORK_TIMEOUT_S)
        assert isinstance(forked, Forked)
        return forked.pid, self.channel.take_fds(1)[0]

    def messages(self) -> list[AnyMessage]:
        """What it has to say that has not been read; does not wait."""
        found = self._pending + self.channel.poll(0)
        self._pending = []
        return found

    def close(self) -> None:
        """End it, and with it every worker that still runs."""
        self.channel.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _await(self, kind: type, timeout_s: float) -> AnyMessage:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self.channel.at_end:
            self._pending += self.channel.poll(0.1)
            for message in self._pending:
                if isinstance(message, kind):
                    self._pending.remove(message)
                    return message
        if self.channel.at_end:
            raise HoldfastError(f"the fork server died; see {self.log}")
        raise HoldfastError(
            f"the fork server gave no '{kind.__name__}' within {timeout_s:.0f} s; see {self.log}"
        )
