"""AgentProcess: an agent as a child of a process that Ray has started, such as an actor.

It reads a token from its standard input and ends when that is closed, so it does not outlive the
process that has started it. Little is imported here: that comes before the agent's own start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import ray

END_TIMEOUT_S: Final = 30.0
LAST_LINES: Final = 3
"""Lines that are shown of what an agent has printed when it fails."""


class AgentProcess:
    """One agent, which is started at once.

    Args:
        arguments: Arguments of the command `holdfast`.
        token: For its standard input.
    """

    def __init__(self, arguments: Sequence[str], token: str) -> None:
        environment = dict(os.environ)
        environment.pop("OMP_NUM_THREADS", None)  # Ray's; training processes get the job's
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.write(f"{token}\n")
            self._process.stdin.flush()

    def await_end(self, show: Callable[[str], object] = print) -> tuple[int, str]:
        """Show what it prints until it ends; returns its exit status and its last lines.

        Args:
            show: Takes a line; by default, it gets into the log that Ray keeps of this process.
        """
        assert self._process.stdout is not None
        printed = deque[str](maxlen=LAST_LINES)
        for line in map(str.strip, self._process.stdout):
            show(line)
            printed.append(line)
        return self._process.wait(END_TIMEOUT_S), " ".join(printed)

    def stop(self) -> None:
        """Have it end, and do not wait for that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """End it; returns when it has ended."""
        self.stop()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)


class AgentActor:
    """Runs one agent on a node of a Ray cluster, which knows of no worker and no step."""

    def node(self) -> str:
        """The id of this actor's node."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, arguments: tuple[str, ...], token: str) -> tuple[int, str]:
        """Run an agent to its end.

        Args:
            arguments: Arguments of the command `holdfast`.
            token: For its standard input.

        Returns:
            Its exit status, and the end of what it has printed.
        """
        return AgentProcess(arguments, token).await_end()
