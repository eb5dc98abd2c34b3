"""The `holdfast` command and its subcommands."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import Annotated, Final

import typer

from holdfast.cli import chaos, drill, jobs, train
from holdfast.cli import run as script
from holdfast.cli.checkpoint import group as checkpoint
from holdfast.cli.cluster import agent, coordinator, doctor, hosts, pods, profile, render, token
from holdfast.cli.ending import FAILED_STATUS, STOPPED_STATUS, USAGE_STATUS
from holdfast.cli.observe import (
    audit,
    breakdown,
    dashboard,
    events,
    export,
    goodput,
    metrics,
    runs,
    top,
    track,
)
from holdfast.errors import HoldfastError, Interrupted, JobError, RankTraceback
from holdfast.job import renamed
from holdfast.launch.spawn import Spawned
from holdfast_bench.cli import (
    report,
    suite,  # noqa: F401  # adds commands
)
from holdfast_bench.cli.bench import app as bench


def _version(is_asked: bool) -> None:
    if is_asked:
        print(metadata.version("holdfast"))
        raise typer.Exit


_HELP: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    context_settings=_HELP,
    help="Train PyTorch models on machines that fail and differ, and get the same weights.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("run", context_settings={"allow_interspersed_args": False, **_HELP})(script.run)
app.command("coordinator")(coordinator.coordinator)
app.command("agent")(agent.agent)
app.command("token")(token.token)
app.command("audit")(audit.audit)
app.command("chaos")(chaos.chaos)
app.command("dashboard")(dashboard.dashboard)
app.command("doctor")(doctor.doctor)
app.command("drill")(drill.drill)
app.command("breakdown")(breakdown.breakdown)
app.command("events")(events.events)
app.command("export")(export.export)
app.command("goodput")(goodput.goodput)
app.command("jobs")(jobs.jobs)
app.command("profile")(profile.profile)
app.command("report")(report.report)
app.command("runs")(runs.runs)
app.command("logs")(runs.logs)
app.command("stop")(runs.stop)
app.command("top")(top.top)
app.command("track")(track.track)
app.add_typer(bench, name="bench")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(hosts.app, name="hosts")
app.add_typer(metrics.app, name="metrics")
app.add_typer(pods.app, name="pods")
app.add_typer(render.app, name="render")


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Train PyTorch models on machines that fail and differ, and get the same weights."""


def run(spawned: Spawned | None) -> None:
    """Run the command line; known errors are printed as one line on standard error.

    With --json the error is also printed as one object at the end of standard output.

    Args:
        spawned: A fork server that the command may use.
    """
    try:
        _check_renamed(_own(sys.argv[1:]))
        app(obj=spawned)
    except HoldfastError as error:
        if isinstance(error.__cause__, RankTraceback):
            print(error.__cause__, file=sys.stderr)
        message = " ".join(str(error).split())  # messages of other libraries may have many lines
        print(f"holdfast: {message}", file=sys.stderr)
        if "--json" in _own(sys.argv[1:]):
            print(json.dumps({"error": type(error).__name__, "message": message}))
        sys.exit(_status(error))


def _check_renamed(words: list[str]) -> None:
    """Raises: JobError: An option has been renamed."""
    for word in words:
        option = word.partition("=")[0]
        if option in renamed.OPTIONS:
            raise JobError(f"no option {option}; it is now {renamed.OPTIONS[option]}")


def _status(error: HoldfastError) -> int:
    """The exit status of a command that raised `error`."""
    if isinstance(error, JobError):
        return USAGE_STATUS
    return STOPPED_STATUS if isinstance(error, Interrupted) else FAILED_STATUS


def _own(words: list[str]) -> list[str]:
    """The words of the command itself, without the arguments of a script."""
    if words[:1] != ["run"]:
        return words
    command = typer.main.get_group(app).commands["run"]
    context = command.make_context("run", words[1:], resilient_parsing=True)
    return words[: len(words) - len(context.params["arguments"] or ())]
