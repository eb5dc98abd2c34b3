"""`holdfast train`: run a job on this machine."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import (
    ENGINES,
    AcceptOlder,
    EndingJson,
    JobName,
    Metrics,
    Overrides,
    Profile,
    Queue,
    metrics_address,
    profiles,
    ranks,
)
from holdfast.cli.background import BACKGROUND, await_begin, follow, start
from holdfast.cli.ending import run_and_print
from holdfast.cli.joining import Address
from holdfast.data.download import download as fetch
from holdfast.data.published import PUBLISHED, directory
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.data import Data
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainRequest
from holdfast.linux.cores import usable_cores
from holdfast.observe.downloads import DownloadView
from holdfast.observe.run_dir import RunDirectory, new_run
from holdfast.runs.placing import placed
from holdfast.runs.run import LaunchOptions, RunResult
from holdfast.runs.train import run_job


def train(
    context: typer.Context,
    job: JobName,
    overrides: Overrides = None,
    workers: Annotated[
        str | None, typer.Option(help="Number of workers, or auto; the same as workers=N.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device: auto, cpu or cuda; the same as device=NAME.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run directory; default: a new one in runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --run, or the job's newest run.")
    ] = False,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Resume, with more epochs than the run began with."),
    ] = False,
    accept_older: AcceptOlder = False,
    tee: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Show the output of these ranks: all, or 0,2.",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help=f"Where agents are placed: {ENGINES}.",
        ),
    ] = "",
    address: Address = None,
    queue: Queue = False,
    profile: Profile = None,
    metrics: Metrics = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave the run alone once it has begun.")
    ] = False,
    background: Annotated[bool, typer.Option(BACKGROUND, hidden=True)] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and print all its keys, without a run.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Download the job's published data set if needed.")
    ] = False,
    as_json: EndingJson = False,
) -> None:
    """Train a job; checkpoints, metrics and logs go to its run directory."""
    keys = {"workers": workers, "device": device}
    extra = [f"{key}={value}" for key, value in keys.items() if value is not None]
    asked = [*(overrides or []), *extra]
    chosen = load.load(job, [*asked, *(["extend=true"] if extend else [])])
    known, served = profiles(profile), metrics_address(metrics)
    shown = ranks(tee, usable_cores() if chosen.workers == AUTO else chosen.workers)
    if dry_run:
        chosen.check_hosts()
        text = json.dumps(chosen.model_dump(mode="json")) if as_json else load.dump(chosen)
        print(text.rstrip("\n"))
        return
    if download:
        _download(chosen.data)
    if (on or detach) and not background:
        where = run or (RunDirectory.newest(chosen) if resume or extend else new_run(chosen.name))
        _in_background(where, chosen.name, on, detach=detach)
        return
    options = LaunchOptions(
        tee=shown,
        forks=context.obj,
        queue=queue,
        profile=known,
        metrics=served,
        accept_older=accept_older,
    )
    run_and_print(
        partial(_run, chosen, on, address or "", run, resume or extend),
        options,
        partial(_next_commands, [job, *asked], chosen),
        as_json=as_json,
    )


def _in_background(run_dir: Path, job: str, on: str, *, detach: bool) -> None:
    record, process = start(run_dir, job, on.partition(":")[0] or "local")
    status = await_begin(record, process) if detach else follow(record, process)
    if status:
        raise typer.Exit(status)
    if detach:
        print(record.id)
        print(f"in the background; see holdfast logs -f {record.id}", file=sys.stderr)


def _run(
    job: TrainRequest,
    on: str,
    address: str,
    run_dir: Path | None,
    resume: bool,
    options: LaunchOptions,
) -> RunResult:
    with placed(job, options, on, address, run_dir) as there:
        return run_job(job, there, run_dir=run_dir, resume=resume)


def _next_commands(asked: list[str], job: TrainRequest, result: RunResult) -> dict[str, list[str]]:
    """What a user may want to do after a run.

    Args:
        asked: The job's name and overrides, as they were given.
        job: The job.
        result: Of the run.
    """
    run_dir = str(result.run_dir)
    events = ["holdfast", "events", run_dir]
    if result.status == "stopped":
        again = ["holdfast", "train", *asked, "--run", run_dir, "--resume"]
        return {"continue": again, "what happened": events}
    same = [word for word in asked if not word.startswith("epochs=")]
    longer = ["--run", run_dir, "--extend", f"epochs={2 * job.epochs}"]
    return {
        "what happened": events,
        "weights": ["holdfast", "export", run_dir, "model.safetensors"],
        "train for longer": ["holdfast", "train", *same, *longer],
        "compare with others": ["holdfast", "bench", "recovery"],
    }


def _download(data: Data | None) -> None:
    """Download the data set of a job."""
    name = None if data is None else data.name
    if name not in PUBLISHED:
        raise JobError(
            f"--download supports {', '.join(PUBLISHED)}, not data.name={name}; remove it"
        )
    if getattr(data, "path", None) is not None:
        raise JobError("--download and data.path exclude each other; remove one of them")
    with DownloadView() as view:
        fetch(name, PUBLISHED[name], directory(name), view.report)
