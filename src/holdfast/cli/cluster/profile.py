"""`holdfast profile`: what the hardware of this host, or of the hosts of an engine, reaches."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.api.reserve import count_hosts, engine_hosts
from holdfast.cli import complete
from holdfast.cli.arguments import ENGINES, Json, Overrides
from holdfast.cli.cluster.profile_view import show
from holdfast.cli.status import FAILED_STATUS
from holdfast.doctor.finding import Finding
from holdfast.doctor.peers.profiling import profile_hosts
from holdfast.errors import HoldfastError, JobError
from holdfast.hardware.host import profile_here
from holdfast.hardware.profile_file import Profiles
from holdfast.job import load
from holdfast.rundir.run_directory import RUNS


def profile(
    job: Annotated[
        str,
        typer.Argument(
            help="With --on: the job whose hosts are reserved; default: one worker on every host.",
            autocompletion=complete.job,
        ),
    ] = "",
    overrides: Overrides = None,
    on: Annotated[
        str,
        typer.Option(metavar="ENGINE", help=f"Measure the hosts that it reserves: {ENGINES}."),
    ] = "",
    address: Annotated[
        str,
        typer.Option(help="With --on: address of this host for the others; default: of the route."),
    ] = "",
    path: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory whose disk is measured; default: runs, or ., and with --on where "
            "agents keep their runs.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the profile to a file for --profile, too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure GPUs, CPU, memory and disk, and score them: TFLOPS of matrix products.

    With --on, hosts of an engine are measured, and the links between them; exits with 1 if a part
    of that has failed.
    """
    failed: list[Finding] = []
    if on:
        found = _of_engine([job, *(overrides or [])], on, address, path, failed)
    elif job or address:
        raise JobError("a job and --address say how hosts are reserved; give --on ENGINE, too")
    else:
        found = _here(path or (RUNS if RUNS.is_dir() else Path()))
    if not found.hosts:
        raise HoldfastError("no host was measured; see above")
    if output is not None and not failed:
        _write(output, found.model_dump_json(indent=2))
    if as_json:
        print(found.model_dump_json())
    else:
        show(found)
    if failed and output is not None:
        print(f"{output} is not written: hosts or links are missing", file=sys.stderr)
    if failed:
        raise typer.Exit(FAILED_STATUS)


def _here(folder: Path) -> Profiles:
    if not folder.is_dir():
        raise JobError(f"--path {folder}: there is no such directory; name one that exists")
    return Profiles(hosts={socket.gethostname(): profile_here(folder)})


def _of_engine(
    words: list[str], on: str, address: str, path: Path | None, failed: list[Finding]
) -> Profiles:
    """Measure the hosts that an engine reserves for a job; what fails is added to `failed`."""
    name, *overrides = words if words[0] else _one_worker_each(count_hosts(on))
    request = load.load(name, overrides)

    def fail(finding: Finding) -> None:
        failed.append(finding)
        host = f"{finding.host}: " if finding.host else ""
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        print(f"{host}{finding.found}{remedy}", file=sys.stderr, flush=True)

    with engine_hosts(request, on, address) as hosts:
        return profile_hosts(request.resolved(), hosts, str(path or ""), fail)


def _one_worker_each(hosts: int) -> list[str]:
    """A job for so many hosts, in words."""
    return ["digits", f"hosts={hosts}", f"workers={hosts}"]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise JobError(f"--output {path}: {error.strerror}; name a file elsewhere") from None
