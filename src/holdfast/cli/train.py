"""`holdfast train`: run a job on this machine."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.api.attended import Attendance
from holdfast.api.background import run_in_background
from holdfast.api.result import RunResult
from holdfast.api.train import check_job, run_job
from holdfast.cli.arguments import (
    AcceptOlder,
    Detach,
    EndingJson,
    InBackground,
    JobOfRun,
    Metrics,
    NewRun,
    On,
    Overrides,
    Profile,
    Queue,
    Resume,
    Tee,
    metrics_address,
    profiles,
    ranks,
)
from holdfast.cli.cluster.joining import Address
from holdfast.cli.ending import run_and_print
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.models import MistralSpec
from holdfast.job.part import AUTO
from holdfast.linux.supply import usable_cores
from holdfast.rundir.run_directory import RunDirectory, new_run
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions


def train(
    context: typer.Context,
    job: JobOfRun = None,
    overrides: Overrides = None,
    run: NewRun = None,
    resume: Resume = False,
    backup: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Resume from a backup: fetch the run, with its job, into --run first.",
        ),
    ] = None,
    accept_older: AcceptOlder = False,
    tee: Tee = None,
    on: On = "",
    address: Address = None,
    queue: Queue = False,
    profile: Profile = None,
    metrics: Metrics = None,
    detach: Detach = False,
    background: InBackground = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and print all its keys, without a run.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Download the job's published data set if needed.")
    ] = False,
    as_json: EndingJson = False,
) -> None:
    """Train a job; checkpoints, metrics and logs go to its run directory."""
    words = _with_arguments(overrides or [], sys.argv)
    resume = resume or any(map(_extends, [job or "", *words]))
    if backup is not None and not background:  # else the command before this one has done so
        if not resume or dry_run:
            raise JobError("--from continues a run: add --resume or extend=true, without --dry-run")
        from holdfast.api.fetch import fetch_run

        run = fetch_run(backup, run)
    named, asked = _named(job, words, run if resume else None)
    chosen = load.load(named, asked) if named else load.resumed(run or Path(), asked)
    resume = resume or chosen.extend
    known = profiles(profile)
    served = metrics_address(metrics)
    shown = ranks(tee, usable_cores() if chosen.workers == AUTO else chosen.workers)
    if dry_run:
        check_job(chosen, run, resume=resume)
        text = json.dumps(chosen.model_dump(mode="json")) if as_json else load.dump(chosen)
        print(text.rstrip("\n"))
        return
    if download:
        from holdfast.api.fetch import download_data

        download_data(chosen.data)
    if (on or detach) and not background:
        where = run or (RunDirectory.newest(chosen) if resume else new_run(chosen.name))
        command = [word for word in sys.argv[1:] if word != "--detach"]
        engine = on.partition(":")[0] or "local"
        if status := run_in_background(command, where, chosen.name, engine, detach=detach):
            raise typer.Exit(status)
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
        partial(
            _next_commands,
            [*filter(None, [named]), *asked],
            2 * chosen.epochs,
            "adapter" if isinstance(chosen.model, MistralSpec) else "model.safetensors",
        ),
        shown=shown,
        as_json=as_json,
    )


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


def _with_arguments(words: list[str], command: list[str]) -> list[str]:
    """Overrides, with what follows `--` in the command as the key `arguments`."""
    if "--" not in command:
        return words
    arguments = command[command.index("--") + 1 :]
    return [*words[: len(words) - len(arguments)], f"arguments={json.dumps(arguments)}"]


def _extends(word: str) -> bool:
    """True if a word asks for more epochs of a run, which is resumed."""
    key, _, value = word.partition("=")
    return key == "extend" and value.lower() == "true"


def _next_commands(
    asked: list[str], more_epochs: int, weights: str, result: RunResult
) -> dict[str, list[str]]:
    """Commands that a user may want after a run.

    Args:
        asked: The job's name and overrides, as they were given.
        more_epochs: Epochs for a longer run.
        weights: File or folder for `holdfast export`: for adapters, the folder that peft reads.
        result: Result of the run.
    """
    run_dir = str(result.run_dir)
    events = ["holdfast", "events", run_dir]
    if result.status == "stopped":
        again = ["holdfast", "train", *asked, "--run", run_dir, "--resume"]
        return {"continue": again, "what happened": events}
    same = [word for word in asked if not word.startswith(("epochs=", "extend="))]
    longer = ["extend=true", f"epochs={more_epochs}", "--run", run_dir]
    return {
        "what happened": events,
        "weights": ["holdfast", "export", run_dir, weights],
        "train for longer": ["holdfast", "train", *same, *longer],
        "compare with others": ["holdfast", "bench", "recovery"],
    }
