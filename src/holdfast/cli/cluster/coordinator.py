"""`holdfast coordinator`: run a job on several hosts, of which this is mostly the first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.api.attended import Attendance
from holdfast.api.result import RunResult
from holdfast.api.train import run_job
from holdfast.cli import complete
from holdfast.cli.arguments import (
    AcceptOlder,
    EndingJson,
    Metrics,
    Overrides,
    Profile,
    Resume,
    metrics_address,
    profiles,
)
from holdfast.cli.cluster.joining import Address, Port, announcing, endpoint_at, host_range
from holdfast.cli.ending import run_and_print
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainRequest
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.hosts.endpoint import DEFAULT_PORT
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions


def coordinator(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            help="Built-in job (digits, …), path of a .yaml file, or file.py:function.",
            autocompletion=complete.job,
        ),
    ] = None,
    overrides: Overrides = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="Hosts that the run begins with, this one included, and MIN:MAX if more may join "
            "while it trains; default: those of the job, or 2.",
        ),
    ] = None,
    no_workers: Annotated[
        bool,
        typer.Option("--no-workers", help="Train on the other hosts only, which are all --hosts."),
    ] = False,
    address: Address = None,
    port: Port = DEFAULT_PORT,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory of this host; default: a new one in runs/."),
    ] = None,
    resume: Resume = False,
    accept_older: AcceptOlder = False,
    profile: Profile = None,
    metrics: Metrics = None,
    as_json: EndingJson = False,
) -> None:
    """Train a job on several hosts; print the line to run on each of the others.

    With --resume and --run, JOB may be left out: the run directory of any host has it.
    """
    words = [*([] if job is None else [job]), *(overrides or [])]
    chosen = _request(words, hosts, run if resume else None)
    if no_workers and chosen.workers == AUTO:
        raise JobError("workers=auto measures this host; with --no-workers, give a number of them")
    endpoint = endpoint_at(address, port)
    others = chosen.most_hosts if no_workers else chosen.most_hosts - 1
    run_and_print(
        partial(
            run_job,
            chosen,
            LaunchOptions(forks=context.obj),
            run_dir=run,
            resume=resume,
            placement=Placement(
                endpoint=endpoint, has_own_host=not no_workers, profile=profiles(profile)
            ),
            attendance=Attendance(
                sidecar=announcing(endpoint, others), metrics=metrics_address(metrics)
            ),
            accept_older=accept_older,
        ),
        _next_commands,
        as_json=as_json,
    )


def _request(words: list[str], hosts: str | None, begun: Path | None) -> TrainRequest:
    """The job that the words of the command line name, or that of a run that has begun."""
    counts = {} if hosts is None else host_range("--hosts", hosts)
    is_one = counts.get("max_hosts") == 1 or (not counts and "hosts=1" in words)
    if is_one:
        raise JobError("hosts=1 needs no coordinator; run holdfast train, or name more --hosts")
    chosen = _of_words([*words, *(f"{key}={count}" for key, count in counts.items())], begun)
    return chosen if chosen.most_hosts > 1 else _of_words([*words, "hosts=2"], begun)


def _of_words(words: list[str], begun: Path | None) -> TrainRequest:
    is_named = bool(words) and "=" not in words[0].partition(":")[0]
    if is_named:
        return load.load(words[0], words[1:])
    if begun is None:
        raise JobError("name a job; only --resume with --run takes it from the run directory")
    RunDirectory.job_of(begun)  # else it names a better remedy
    return load.resumed(begun, words)


def _next_commands(result: RunResult) -> dict[str, list[str]]:
    return {
        "what happened": ["holdfast", "events", str(result.run_dir)],
        "weights": ["holdfast", "export", str(result.run_dir), "model.safetensors"],
    }
