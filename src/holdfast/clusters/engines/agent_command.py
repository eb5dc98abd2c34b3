"""AgentCommand: a command of this host, such as ssh or srun, below which an agent runs elsewhere.

    token ─▶ standard input ─▶ the agent reads it; it ends when the pipe is closed
    PLACED, TAKEN_AWAY, OVER ◀─ standard output: what the agent tells its engine
    what went wrong ◀─ standard error: of the command, and of the agent

Nothing here waits: an epoll object of the engine is readable when there is news.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Final

from holdfast.clusters.engines.engine import OVER, PLACED, TAKEN_AWAY

KEPT_BYTES: Final = 4096
"""Bytes that are kept of what a command prints."""


class AgentCommand:
    """One such command, which is started at once.

    Args:
        words: The command.
        token: For the agent.
        news: Readable when `look` finds something new.

    Raises:
        OSError: There is no such command.
    """

    def __init__(self, words: Sequence[str], token: str, news: select.epoll) -> None:
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C stops the run, which ends its agents
            bufsize=0,
        )
        self._news = news
        self._pidfd = os.pidfd_open(self._process.pid)
        self._printed: dict[IO[bytes], bytes] = {}
        self._open: set[IO[bytes]] = set()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._printed[stream] = b""
            self._open.add(stream)
            news.register(stream, select.EPOLLIN)
        news.register(self._pidfd, select.EPOLLIN)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.write(f"{token}\n".encode())

    def look(self) -> int | None:
        """Read what was printed; returns the exit status, or None while the command runs."""
        status = self._process.poll()
        for stream in list(self._open):
            self._read(stream)
        if status is not None:
            self._release()
        return status

    @property
    def is_placed(self) -> bool:
        """True if the agent has begun."""
        return PLACED in self._lines(0)

    @property
    def is_taken_away(self) -> bool:
        """True if the agent's host has announced that it will be taken away."""
        return TAKEN_AWAY in self._lines(0)

    @property
    def is_over(self) -> bool:
        """True if the agent has ended because the run is over."""
        return OVER in self._lines(0)

    def last_line(self, noise: str) -> str:
        """The last line of standard error without `noise` in it."""
        lines = [line for line in self._lines(1) if not (noise and noise in line)]
        return (lines or [""])[-1]

    def stop(self) -> None:
        """Have the agent end itself, and do not wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self, timeout_s: float) -> None:
        """Wait for the command after `stop`, and kill it when it takes too long."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.look()

    def _read(self, stream: IO[bytes]) -> None:
        while (data := stream.read(KEPT_BYTES)) is not None:
            if not data:
                self._close(stream)
                return
            self._printed[stream] = (self._printed[stream] + data)[-KEPT_BYTES:]

    def _lines(self, number: int) -> list[str]:
        text = list(self._printed.values())[number].decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def _close(self, stream: IO[bytes]) -> None:
        self._news.unregister(stream)
        self._open.remove(stream)
        stream.close()

    def _release(self) -> None:
        """Close what is left of a command that has ended."""
        self.stop()
        for stream in list(self._open):  # a process that it has left may hold the other end
            self._close(stream)
        if self._pidfd >= 0:
            self._news.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
