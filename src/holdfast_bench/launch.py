"""Launch: the processes of any system, which are started, waited for, injured and read back.

    PeerLaunch   the processes of one run; each rank may log its steps to `rank-N.jsonl`
    recover      a launch, one of whose workers gets a fault

A line of `rank-N.jsonl` has the process id, the step, the world size, and when the step began and
ended, in seconds of the machine's monotonic clock. The program that launches the processes does not
matter, so holdfast and other systems are timed in the same way.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from holdfast.errors import HoldfastError
from holdfast.launch.child import KILL_TIMEOUT_S
from holdfast.rundir import json_lines
from holdfast_bench.trial import WORKERS, Line, wait_until

START_TIMEOUT_S: Final = 240.0
LOG_POLL_S: Final = 0.005
"""Costs no precision: the times come from the log."""
JOIN_POLL_S: Final = 0.25
"""Takes no time from processes that are measured."""
OUTPUT: Final = "output"
"""The file for all that the processes of a launch print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process of a launch.

    Attributes:
        arguments: The program and its arguments.
        environment: Variables added to those of this process.
        relaunched: True if it is started again when it exits.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    relaunched: bool = False


def ranks(
    module: str, world_size: int, environment: Mapping[str, str], **options: object
) -> list[ProcessSpec]:
    """A process for each rank, which runs a module.

    Args:
        module: Takes `--rank` and `--world-size`.
        world_size: Number of processes.
        environment: Variables added to those of this process.
        options: More options of the module; those that are True have no value.
    """
    words = [sys.executable, "-m", module, "--world-size", str(world_size)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return [
        ProcessSpec(arguments=[*words, "--rank", str(rank)], environment=environment)
        for rank in range(world_size)
    ]


class PeerLaunch:
    """The processes of one run; they and all that they have started are killed at the end.

    Args:
        commands: The processes.
        directory: Working directory; holds their output and logs.
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
            time.sleep(LOG_POLL_S)
        for process in self._processes:
            process.wait(KILL_TIMEOUT_S)

    def wait(self, happened: Callable[[], bool], timeout_s: float) -> bool:
        """Poll until `happened()`; False after the timeout.

        Raises:
            HoldfastError: A process that is not relaunched has exited.
        """
        return wait_until(happened, timeout_s, LOG_POLL_S, self._relaunch)

    def join(self, timeout_s: float) -> None:
        """Wait until all processes have ended.

        Raises:
            HoldfastError: One has failed, for which the others would wait in vain, or they take
                too long.
        """

        def have_ended() -> bool:
            for command, process in zip(self._commands, self._processes, strict=True):
                if process.poll():
                    raise self._exited(command, process)
            return all(process.returncode == 0 for process in self._processes)

        if not wait_until(have_ended, timeout_s, JOIN_POLL_S):
            raise HoldfastError(
                f"the processes took longer than {timeout_s:.0f} s; the last line printed was: "
                f"{self.last_line()}"
            )

    def wait_for_steps(self, count: int, workers: int = WORKERS, least_s: float = 0.0) -> None:
        """Wait until each worker has logged so many steps, and for at least so many seconds.

        Raises:
            HoldfastError: They have not in time, or the launcher has exited.
        """
        least = time.monotonic() + least_s

        def is_warm() -> bool:
            are_there = all(len(self.steps(rank)) >= count for rank in range(workers))
            return are_there and time.monotonic() > least

        if not self.wait(is_warm, START_TIMEOUT_S):
            raise HoldfastError(
                f"no {count} steps within {START_TIMEOUT_S:.0f} s of the start; the last line "
                f"printed was: {self.last_line()}"
            )

    def steps(self, rank: int) -> list[Line]:
        """The steps that a rank has logged."""
        return list(json_lines.read(self._directory / f"rank-{rank}.jsonl"))

    def last_line(self) -> str:
        """The last line that any of the processes has printed."""
        printed = (self._directory / OUTPUT).read_text(errors="replace").splitlines()
        return printed[-1] if printed else "(nothing)"

    def _relaunch(self) -> None:
        for index, (command, process) in enumerate(
            zip(self._commands, self._processes, strict=True)
        ):
            if process.poll() is None:
                continue
            if not command.relaunched:
                raise self._exited(command, process)
            self._processes[index] = self._start(command)

    def _exited(self, command: ProcessSpec, process: subprocess.Popen[bytes]) -> HoldfastError:
        return HoldfastError(
            f"{' '.join(command.arguments[:3])} exited with status {process.returncode}; "
            f"the last line printed was: {self.last_line()}"
        )

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


def _processes_with(mark: str) -> list[int]:
    """The living processes that have a word in their environment."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                if mark.encode() in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
    return pids


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Seconds from a fault until the named events, and steps that had to be recomputed."""

    seconds: dict[str, float] = field(default_factory=dict)
    lost: int = 0

    @property
    def committed_s(self) -> float:
        """Seconds until all workers have committed a step.

        Raises:
            HoldfastError: They have not.
        """
        if "committed" not in self.seconds:
            raise HoldfastError("no step of all workers in time")
        return self.seconds["committed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injury:
    """A fault that was injected.

    Attributes:
        at_s: Moment from which a recovery is timed, of the monotonic clock.
        killed: Processes that do not take part in the recovery.
        cut: True if a step that began before the fault may continue after it.
    """

    at_s: float
    killed: Sequence[int] = ()
    cut: bool = False


def signal_worker(number: signal.Signals, chance: random.Random) -> Callable[[PeerLaunch], Injury]:
    """A fault: one of two workers gets a signal at a random moment of a step."""

    def inject(launch: PeerLaunch) -> Injury:
        before = launch.steps(0)
        time.sleep(chance.random() * statistics.median(s["ended"] - s["began"] for s in before))
        pid = launch.steps(chance.randrange(WORKERS))[-1]["pid"]
        at_s = time.monotonic()
        os.kill(pid, number)
        return Injury(at_s=at_s, killed=[pid])

    return inject


def recover(
    launch: PeerLaunch,
    inject: Callable[[PeerLaunch], Injury],
    timeout_s: float,
    workers: int = WORKERS,
) -> Recovery:
    """Injure a warm launch, and time the recovery.

    The times are `anyone`, until some worker has done a step that it began after the fault, and
    `committed`, until all workers of a full world have. A time is absent if that did not happen
    within `timeout_s`.

    Raises:
        HoldfastError: The launcher has exited.
    """
    injury = inject(launch)
    since = "ended" if injury.cut else "began"

    def first_together() -> list[float]:
        """The end of the first step of each rank since the fault, for ranks that have one."""
        ends = []
        for rank in range(workers):
            ends += [
                step["ended"]
                for step in launch.steps(rank)
                if step[since] > injury.at_s
                and step["world"] == workers
                and step["pid"] not in injury.killed
            ][:1]
        return ends

    launch.wait(lambda: len(first_together()) == workers, timeout_s)
    recovery = Recovery()
    steps = [step for rank in range(workers) for step in launch.steps(rank)]
    reached = max(step["step"] for step in steps if step["ended"] <= injury.at_s)
    if after := [step for step in steps if step[since] > injury.at_s]:
        first = min(after, key=lambda step: float(step["ended"]))
        recovery.seconds["anyone"] = first["ended"] - injury.at_s
        recovery.lost = max(0, reached - first["step"] + 1)
    if len(ends := first_together()) == workers:
        recovery.seconds["committed"] = max(ends) - injury.at_s
    return recovery
