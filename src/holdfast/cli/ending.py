"""How a command ends that has run something: what it prints, and with which status."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import typer

from holdfast.engines.run import LaunchOptions, RunResult
from holdfast.errors import WorkerFailed
from holdfast.observe.sinks.terminal import closing_table

FAILED_STATUS: Final = 1
"""The exit status where something that was to happen has not."""

USAGE_STATUS: Final = 2
"""The exit status where the job, not the run, is at fault."""

STOPPED_STATUS: Final = 130
"""The exit status where a signal has ended what was asked for."""


def run_and_tell(
    run: Callable[[LaunchOptions], RunResult], setting: LaunchOptions, *, as_json: bool
) -> None:
    """Run something to its end in a setting and print what has come of it, or one object."""
    try:
        result = run(setting)
    except WorkerFailed as error:
        if error.rank in setting.tee:  # its traceback has been seen
            error.traceback = None
        raise
    print(json.dumps(result.as_dict()) if as_json else closing_table(result.as_dict()))
    if result.status == "stopped":
        raise typer.Exit(STOPPED_STATUS)
