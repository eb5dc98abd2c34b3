"""`holdfast profile`: what the hardware of this host reaches."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import Json
from holdfast.cli.profile_view import show
from holdfast.errors import JobError
from holdfast.hardware.host import profile_here
from holdfast.hardware.profile_file import Profiles
from holdfast.observe.run_dir import RUNS


def profile(
    path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory whose disk is measured; default: runs, or ."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the profile to a file for --profile, too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure GPUs, CPU, memory and disk, and score them: TFLOPS of matrix products."""
    folder = path or (RUNS if RUNS.is_dir() else Path())
    if not folder.is_dir():
        raise JobError(f"--path {folder}: there is no such directory; name one that exists")
    found = Profiles(hosts={socket.gethostname(): profile_here(folder)})
    text = found.model_dump_json(indent=2)
    if output is not None:
        _write(output, text)
    if as_json:
        print(found.model_dump_json())
    else:
        show(found)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise JobError(f"--output {path}: {error.strerror}; name a file elsewhere") from None
