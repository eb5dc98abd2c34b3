"""A run that somebody follows: its progress is shown, its losses told of, its result kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.arena.memory import Arena
from holdfast.engines import local
from holdfast.engines.launch_options import LaunchOptions
from holdfast.errors import HoldfastError
from holdfast.job.spec import Job
from holdfast.observe import curve
from holdfast.observe.follower import Follower
from holdfast.observe.notify import Notifier
from holdfast.observe.run_dir import METRICS, RunDirectory
from holdfast.observe.tee import Tee
from holdfast.observe.terminal import RunView, closing_table


class RunResult(Protocol):
    """What a run comes to."""

    @property
    def status(self) -> str:
        """How it ended, in a word."""

    def as_dict(self) -> dict[str, Any]:
        """All there is to say, as plain data."""


T = TypeVar("T", bound=RunResult)


def run(
    job: Job,
    path: Path,
    conclude: Callable[[dict[str, Any]], T],
    setting: LaunchOptions,
    *,
    resume: bool,
) -> T:
    """Run a job to its end.

    Args:
        job: What to do.
        path: The run's directory.
        conclude: From what a worker reports to the result.
        setting: What is around it.
        resume: Whether the directory must be there already.

    Raises:
        HoldfastError: See `local.run`.
    """
    notifier, last = Notifier(job, os.environ), None
    with RunDirectory(path, job, resume=resume) as directory:
        try:
            with setting.sidecar(path):
                found = _shown(job, directory, notifier, setting)
                result = conclude(found)
                _keep(result.as_dict(), path)
                last = result.status, closing_table(result.as_dict())
            return result
        except HoldfastError as error:
            last = last or ("failed", str(error))
            raise
        finally:
            notifier.close(path, _complain, last)


def _shown(
    job: Job, directory: RunDirectory, notifier: Notifier, setting: LaunchOptions
) -> dict[str, Any]:
    """Run a job and show what happens meanwhile; returns what a worker reports of it."""
    view = RunView(Tee(directory.logs, setting.tee))
    follower = Follower(directory.path, job, view.tell, notifier)

    def watch(arena: Arena) -> None:
        follower.watch()
        view.watch(arena)

    try:
        setting.controls.watch = watch
        return local.run(job, directory, setting.controls, setting.forks)
    finally:
        follower.watch()
        view.close()


def _keep(result: dict[str, Any], path: Path) -> None:
    try:
        (path / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        if result.get("steps"):  # a script may keep files of its own there
            curve.draw(path / METRICS, path / "loss.png")
    except OSError as error:  # the weights are safe: the result is worth more than its copy
        _complain(f"{error}; the result is not kept there")


def _complain(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr)
