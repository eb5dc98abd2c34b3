"""`holdfast train`: run a job on this machine."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.api.attended import Attendance, RunResult
from holdfast.api.train import run_job
from holdfast.cli.arguments import (
    ENGINES,
    AcceptOlder,
    EndingJson,
    JobOfRun,
    Metrics,
    Overrides,
    Profile,
    Queue,
    metrics_address,
    profiles,
    ranks,
)
from holdfast.cli.background import BACKGROUND, await_begin, follow, start
from holdfast.cli.cluster.joining import Address
from holdfast.cli.ending import run_and_print
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.data import Data
from holdfast.job.models import MistralSpec
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainRequest
from holdfast.linux.supply import usable_cores
from holdfast.rundir.run_directory import EVENTS, RunDirectory, new_run
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions


def train(
    context: typer.Context,
    job: JobOfRun = None,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(help="Run directory; default: a new one in runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --run, or the job's newest run.")
    ] = False,
    backup: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Resume from a backup: fetch the run, with its job, into --run first.",
        ),
    ] = None,
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
    words = overrides or []
    resume = resume or any(map(_extends, [job or "", *words]))
    if backup is not None and not background:  # else the command before this one has done so
        run = _restored(backup, run, resume=resume, dry_run=dry_run)
    named, asked = _named(job, words, run if resume else None)
    chosen = load.load(named, asked) if named else load.resumed(run or Path(), asked)
    resume = resume or chosen.extend
    known = profiles(profile)
    served = metrics_address(metrics)
    shown = ranks(tee, usable_cores() if chosen.workers == AUTO else chosen.workers)
    if dry_run:
        chosen.check_hosts()
        text = json.dumps(chosen.model_dump(mode="json")) if as_json else load.dump(chosen)
        print(text.rstrip("\n"))
        return
    if download:
        _download(chosen.data)
    if (on or detach) and not background:
        where = run or (RunDirectory.newest(chosen) if resume else new_run(chosen.name))
        _in_background(where, chosen.name, on, detach=detach)
        return
    run_and_print(
        partial(
            run_job,
            chosen,
            LaunchOptions(forks=context.obj),
            run_dir=run,
            resume=resume,
            placement=Placement(profile=known),
            attendance=Attendance(tee=shown, metrics=served),
            on=on,
            address=address or "",
            queue=queue,
            accept_older=accept_older,
        ),
        partial(_next_commands, [*filter(None, [named]), *asked], chosen),
        shown=shown,
        as_json=as_json,
    )


def _restored(url: str, run_dir: Path | None, *, resume: bool, dry_run: bool) -> Path:
    """The run directory that is made of a backup."""
    if not resume or dry_run:
        raise JobError("--from continues a run: add --resume or extend=true, without --dry-run")
    source = Path(url.removeprefix("file://"))
    if (source / EVENTS).is_file():  # in a backup it is a folder
        raise JobError(
            f"{url} is a run directory, not a backup; continue its run with --run {source} "
            "--resume, without --from"
        )
    from holdfast.sinks.backup.restore import restore

    path = restore(url, run_dir, os.environ, partial(print, file=sys.stderr))
    print(f"the run is in {path}", file=sys.stderr)
    return path


def _named(
    job: str | None, overrides: list[str], run_dir: Path | None
) -> tuple[str | None, list[str]]:
    """The job and its overrides. The job may be left out if a run directory has it.

    Args:
        job: The first word; an override if there is no job.
        overrides: The other words.
        run_dir: The directory of the run that is resumed, if that is known.
    """
    if job is not None and (run_dir is None or "=" not in job):
        return job, overrides
    if run_dir is None:
        raise JobError(
            f"no job is named: give {', '.join(load.builtin_names()[:3])}, …, a .yaml file or your "
            "own file.py:function; only --resume or extend=true with --run or --from needs none"
        )
    return None, [*filter(None, [job]), *overrides]


def _extends(word: str) -> bool:
    """True if a word asks for more epochs of a run, which is resumed."""
    key, _, value = word.partition("=")
    return key == "extend" and value.lower() == "true"


def _in_background(run_dir: Path, job: str, on: str, *, detach: bool) -> None:
    record, process = start(run_dir, job, on.partition(":")[0] or "local")
    status = await_begin(record, process) if detach else follow(record, process)
    if status:
        raise typer.Exit(status)
    if detach:
        print(record.id)
        print(f"in the background; see holdfast logs -f {record.id}", file=sys.stderr)


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
    same = [word for word in asked if not word.startswith(("epochs=", "extend="))]
    longer = ["extend=true", f"epochs={2 * job.epochs}", "--run", run_dir]
    return {
        "what happened": events,
        "weights": ["holdfast", "export", run_dir, _weights_file(job)],
        "train for longer": ["holdfast", "train", *same, *longer],
        "compare with others": ["holdfast", "bench", "recovery"],
    }


def _weights_file(job: TrainRequest) -> str:
    """What `holdfast export` may write: of adapters, the folder that peft reads."""
    return "adapter" if isinstance(job.model, MistralSpec) else "model.safetensors"


def _download(data: Data | None) -> None:
    """Download the data set of a job."""
    from holdfast.data.download import download as fetch
    from holdfast.data.published import PUBLISHED, PublishedFile, directory
    from holdfast.sinks.transfers import TransferView

    name = None if data is None else data.name
    if name not in PUBLISHED:
        raise JobError(
            f"--download supports {', '.join(PUBLISHED)}, not data.name={name}; remove it"
        )
    if getattr(data, "path", None) is not None:
        raise JobError("--download and data.path exclude each other; remove one of them")
    with TransferView() as view:

        def report(file: PublishedFile, done_bytes: int) -> None:
            view.report(f"downloading {file.name}", done_bytes, file.size_bytes)

        fetch(name, PUBLISHED[name], directory(name), report)
