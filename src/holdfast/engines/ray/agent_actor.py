"""The actor that runs one agent on a node of a Ray cluster.

The agent is a process of its own: Ray knows of no worker and no step. It reads a token from its
standard input and ends when that is closed, so it does not outlive its actor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from typing import Final

import ray

END_TIMEOUT_S: Final = 30.0
LAST_LINES: Final = 3
"""How much of what an agent has printed is said when it fails."""


class AgentActor:
    """Runs one agent."""

    def node(self) -> str:
        """The id of this actor's node."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, arguments: tuple[str, ...], token: str) -> tuple[int, str]:
        """Run an agent to its end.

        Args:
            arguments: Of the command `holdfast`.
            token: For its standard input.

        Returns:
            Its exit status, and the end of what it has printed.
        """
        environment = dict(os.environ)
        environment.pop("OMP_NUM_THREADS", None)  # Ray's, for the actor; workers get the job's
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{token}\n")
        process.stdin.flush()
        printed = deque[str](maxlen=LAST_LINES)
        for line in process.stdout:
            print(line, end="", flush=True)  # to the log that Ray keeps of this actor
            printed.append(line.strip())
        return process.wait(END_TIMEOUT_S), " ".join(printed)
