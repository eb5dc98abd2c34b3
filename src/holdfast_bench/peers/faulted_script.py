"""A run of a script that logs its steps: one of two workers gets a fault, the recovery is timed.

Each rank appends an object per step to `rank-N.jsonl`: process id, step, world size, and when the
step began and ended, in seconds of the machine's monotonic clock. What launches the script does not
matter, so holdfast and other systems are timed in the same way.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from holdfast.errors import HoldfastError
from holdfast.launch.child import KILL_TIMEOUT_S
from holdfast.rundir import json_lines
from holdfast_bench.faulted_run import FAULT_STEP, WORKERS

START_TIMEOUT_S: Final = 240.0
POLL_INTERVAL_S: Final = 0.005
"""Costs no precision: the times come from the log."""
OUTPUT: Final = "output"
"""The file for what the processes print."""


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Seconds from a fault until the named events, and steps that had to be recomputed."""

    seconds: dict[str, float] = field(default_factory=dict)
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process of a launch.

    Attributes:
        arguments: The program and its arguments.
        environment: Variables added to those of this process.
        relaunched: Whether it is started again when it exits.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    relaunched: bool = False


class LaunchedProcesses:
    """The processes of one run; they and all that they have started are killed at the end.

    Args:
        commands: What is started.
        directory: Working directory; holds what they print and log.
    """

    def __init__(self, commands: Sequence[ProcessSpec], directory: Path) -> None:
        self._commands = commands
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mark = f"HOLDFAST_BENCH_{uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        try:
            for command in self._commands:
                self._processes.append(self._start(command))
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (living := _processes_with(self._mark)) and time.monotonic() < deadline:
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_INTERVAL_S)
        for process in self._processes:
            process.wait(KILL_TIMEOUT_S)

    def wait(self, happened: Callable[[], bool], timeout_s: float) -> bool:
        """Poll until `happened()`; False after the timeout.

        Raises:
            HoldfastError: A process that is not relaunched has exited.
        """
        deadline = time.monotonic() + timeout_s
        while not happened():
            if time.monotonic() > deadline:
                return False
            self._relaunch()
            time.sleep(POLL_INTERVAL_S)
        return True

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """The steps that a rank has logged."""
        return list(json_lines.read(self._directory / f"rank-{rank}.jsonl"))

    def _relaunch(self) -> None:
        for index, (command, process) in enumerate(
            zip(self._commands, self._processes, strict=True)
        ):
            if process.poll() is None:
                continue
            if not command.relaunched:
                raise HoldfastError(
                    f"{' '.join(command.arguments[:3])} exited with status {process.returncode}; "
                    f"the last line printed was: {self.last_line()}"
                )
            self._processes[index] = self._start(command)

    def _start(self, command: ProcessSpec) -> subprocess.Popen[bytes]:
        with (self._directory / OUTPUT).open("ab") as output:
            return subprocess.Popen(
                command.arguments,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **command.environment, self._mark: "1"},
                start_new_session=True,
            )

    def last_line(self) -> str:
        """The last line that any of the processes has printed."""
        printed = (self._directory / OUTPUT).read_text(errors="replace").splitlines()
        return printed[-1] if printed else "(nothing)"


def _processes_with(mark: str) -> list[int]:
    """The living processes that have a word in their environment."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                if mark.encode() in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
    return pids


def time_recovery(
    commands: Sequence[ProcessSpec],
    directory: Path,
    number: signal.Signals,
    chance: random.Random,
    timeout_s: float,
) -> Recovery:
    """Run, signal one of the workers at a random moment of a step, and time the recovery.

    The times are `anyone`, until some worker has done a step that it began after the fault, and
    `committed`, until all workers of a full world have. A time is absent if that did not happen
    within `timeout_s`.

    Raises:
        HoldfastError: The workers did not start, or the launcher has exited.
    """
    with LaunchedProcesses(commands, directory) as launch:

        def is_warm() -> bool:
            return all(len(launch.steps(rank)) >= FAULT_STEP for rank in range(WORKERS))

        if not launch.wait(is_warm, START_TIMEOUT_S):
            raise HoldfastError(
                f"no {FAULT_STEP} steps within {START_TIMEOUT_S:.0f} s of the start; the last line "
                f"printed was: {launch.last_line()}"
            )
        before = launch.steps(0)
        time.sleep(chance.random() * statistics.median(s["ended"] - s["began"] for s in before))
        killed = launch.steps(chance.randrange(WORKERS))[-1]["pid"]
        fault_at = time.monotonic()
        os.kill(killed, number)

        def first_together() -> list[float]:
            """When each rank ended its first step since the fault, for ranks that have one."""
            recoveries = []
            for rank in range(WORKERS):
                ends = [
                    step["ended"]
                    for step in launch.steps(rank)
                    if step["began"] > fault_at
                    and step["world"] == WORKERS
                    and step["pid"] != killed
                ]
                recoveries += ends[:1]
            return recoveries

        launch.wait(lambda: len(first_together()) == WORKERS, timeout_s)
        steps = [step for rank in range(WORKERS) for step in launch.steps(rank)]
        return _recovery_of(steps, fault_at, first_together())


def _recovery_of(
    steps: Sequence[Mapping[str, Any]], fault_at: float, together: Sequence[float]
) -> Recovery:
    recovery = Recovery()
    reached = max(step["step"] for step in steps if step["ended"] <= fault_at)
    since = [step for step in steps if step["began"] > fault_at]
    if since:
        first = min(since, key=lambda step: float(step["ended"]))
        recovery.seconds["anyone"] = first["ended"] - fault_at
        recovery.lost = max(0, reached - first["step"] + 1)
    if len(together) == WORKERS:
        recovery.seconds["committed"] = max(together) - fault_at
    return recovery
