"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.api.background import BACKGROUND
from holdfast.cli import complete
from holdfast.errors import JobError
from holdfast.rundir.run_directory import EVENTS, RUNS
from holdfast.sinks.prometheus.address import MetricsAddress

if TYPE_CHECKING:
    from holdfast.hardware.profile_file import Profiles

ENGINES: Final = "ray, ray:ADDRESS, ssh:FILE, slurm or kubernetes:SELECTOR[@NAMESPACE]"
"""Values that `--on` takes."""

JobName = Annotated[
    str,
    typer.Argument(
        help="Built-in job (digits, …), path of a .yaml file, or file.py:function.",
        autocompletion=complete.job,
    ),
]
JobOfRun = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="Built-in job (digits, …), path of a .yaml file, file.py:function, or file.py, a "
        "program. To resume a run by --run or --from, none is needed.",
        autocompletion=complete.job,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Job keys to override; after --, arguments of the program.",
        autocompletion=complete.override,
    ),
]
NewestRun = Annotated[
    Path | None, typer.Argument(help="Run directory; default: the newest run in runs/.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
EndingJson = Annotated[
    bool,
    typer.Option("--json", help="Print the result or error as one JSON object, at the end."),
]

Queue = Annotated[
    bool, typer.Option("--queue", help="Wait until the CPUs, GPUs and memory it needs are free.")
]

Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Scores of the hosts' devices, as of holdfast profile; default: each host measures.",
    ),
]

AcceptOlder = Annotated[
    bool,
    typer.Option(
        "--accept-older", help="Resume from an older checkpoint also if the newest one is gone."
    ),
]

On = Annotated[str, typer.Option(metavar="ENGINE", help=f"Where agents are placed: {ENGINES}.")]

Detach = Annotated[bool, typer.Option("--detach", help="Leave the run alone once it has begun.")]

InBackground = Annotated[bool, typer.Option(BACKGROUND, hidden=True)]

Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --run, or the job's newest run.")
]

NewRun = Annotated[
    Path | None, typer.Option("--run", help="Run directory; default: a new one in runs/.")
]

Tee = Annotated[
    str | None,
    typer.Option(metavar="RANKS", help="Show the output of these ranks: all, or 0,2."),
]

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[ADDRESS:]PORT",
        help="Serve metrics for Prometheus here, by default to this host only; 0: a free port.",
    ),
]


def run_directory(given: Path | None) -> Path:
    """The run directory that was given; by default, that of the newest run.

    Raises:
        JobError: There is no run.
    """
    if given is None:
        logs = list(RUNS.glob(f"**/{EVENTS}"))  # the runs of a drill are one level deeper
        if not logs:
            raise JobError(f"no run in {RUNS}/; pass the directory of one")
        return max(logs, key=lambda path: path.stat().st_mtime).parent
    if not (given / EVENTS).exists():
        raise JobError(f"{given} contains no run; pass the directory of one")
    return given


def ranks(tee: str | None, workers: int) -> frozenset[int]:
    """The ranks in the value of `--tee`.

    Raises:
        JobError: The job has no such rank.
    """
    if tee is None:
        return frozenset()
    known = {str(rank): rank for rank in range(workers)}
    named = list(known) if tee == "all" else tee.split(",")
    wrong = [name for name in named if name not in known]
    if wrong:
        raise JobError(
            f"--tee {tee}: {wrong[0]!r} is not a rank; use all, or ranks from 0 to {workers - 1}"
        )
    return frozenset(known[name] for name in named)


def profiles(path: Path | None) -> Profiles | None:
    """The profiles in the file of `--profile`, if one is given.

    Raises:
        JobError: It is no such file.
    """
    if path is None:
        return None
    from holdfast.hardware import profile_file

    return profile_file.read(path)


def metrics_address(text: str | None) -> MetricsAddress | None:
    """Address at which metrics are served, as `--metrics` says; None: nowhere.

    Raises:
        JobError: It says nothing that can be used.
    """
    return None if text is None else MetricsAddress.parse(text)
