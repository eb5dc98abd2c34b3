"""`holdfast run`: run a script as `torchrun` would, and restart all workers when one fails."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from holdfast.api.attended import Attendance
from holdfast.api.background import run_in_background
from holdfast.api.script import name_of, run_script
from holdfast.cli.arguments import (
    Detach,
    EndingJson,
    InBackground,
    Metrics,
    NewRun,
    On,
    Queue,
    Tee,
    metrics_address,
    ranks,
)
from holdfast.cli.cluster.joining import Address, Port, announcing, endpoint_at, host_range
from holdfast.cli.ending import run_and_print
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.script_job import Script
from holdfast.rundir.run_directory import new_run
from holdfast.runs.hosts.endpoint import DEFAULT_PORT
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="Path of a Python file; with -m, a module.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="Command-line arguments of the script."),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            "--nproc-per-node",
            "--nproc_per_node",
            help="Number of workers on each host; auto: one per CPU core.",
        ),
    ] = "1",
    max_restarts: Annotated[
        int | None,
        typer.Option(min=0, help="Failures tolerated per window of 10 minutes; default: 10."),
    ] = None,
    hang_timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds without progress of any worker before a restart; default: 60."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key of the job, such as resources.gpus=1; may be repeated.",
        ),
    ] = None,
    run_dir: NewRun = None,
    tee: Tee = "all",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="Run SCRIPT as a module, like python -m.")
    ] = False,
    nnodes: Annotated[
        str,
        typer.Option(
            "--nnodes",
            help="Number of hosts, or MIN:MAX; the others run holdfast agent.",
        ),
    ] = "1",
    queue: Queue = False,
    metrics: Metrics = None,
    address: Address = None,
    port: Port = DEFAULT_PORT,
    network: Annotated[
        str, typer.Option(help="How hosts talk to each other: tls, or trusted for plain.")
    ] = "tls",
    on: On = "",
    detach: Detach = False,
    background: InBackground = False,
    master_port: Annotated[
        int,
        typer.Option(
            "--master-port",
            "--master_port",
            help="Port of the store, MASTER_PORT; default: a free one.",
        ),
    ] = 0,
    standalone: Annotated[  # noqa: ARG001  # it changes nothing
        bool, typer.Option("--standalone", help="As in torchrun; always the case on one host.")
    ] = False,
    as_json: EndingJson = False,
) -> None:
    """Run an unchanged torchrun script; when a worker fails, all workers restart."""
    hosts = host_range("--nnodes", nnodes)
    given = arguments or []
    asked = Script(
        path=None if module else script,
        module=script if module else None,
        arguments=tuple(given),
    )
    values = {
        "name": name_of(asked),
        "script": asked.model_dump(),
        "workers": hosts["hosts"] * _number(workers, on),
        **hosts,
        "network": network,
        "port": master_port,
        "hang_timeout_s": hang_timeout_s,
        "restarts": None if max_restarts is None else {"limit": max_restarts},
    }
    job = load.check_script(
        {key: each for key, each in values.items() if each is not None}, script, keys or ()
    )
    shown = ranks(tee, job.most_workers)
    attendance = Attendance(tee=shown, metrics=metrics_address(metrics))
    if (on or detach) and not background:
        options = sys.argv[1 : len(sys.argv) - len(given) - 1]  # before those of the script
        command = [*(word for word in options if word != "--detach"), script, *given]
        engine = on.partition(":")[0] or "local"
        where = run_dir or new_run(job.name)
        if status := run_in_background(command, where, job.name, engine, detach=detach):
            raise typer.Exit(status)
        return
    placement = THIS_HOST
    if job.most_hosts > 1 and not on:
        endpoint = endpoint_at(address, port)
        placement = Placement(endpoint=endpoint)
        attendance = replace(attendance, sidecar=announcing(endpoint, job.most_hosts - 1))
    run_and_print(
        partial(
            run_script,
            job,
            LaunchOptions(forks=context.obj),
            run_dir=run_dir,
            placement=placement,
            attendance=attendance,
            on=on,
            address=address or "",
            queue=queue,
        ),
        lambda result: {"what happened": ["holdfast", "events", str(result.run_dir)]},
        shown=shown,
        as_json=as_json,
    )


def _number(workers: str, on: str) -> int:
    """The number of workers in the value of `--workers`, for the hosts of an engine if one is
    named.
    """
    if workers == "auto" and on:
        raise JobError("--workers auto counts the cores of this host; with --on, give a number")
    if workers == "auto":
        return len(os.sched_getaffinity(0))
    if not workers.isdecimal():
        raise JobError(f"--workers {workers}: use a number, or auto for one per CPU core")
    return int(workers)
