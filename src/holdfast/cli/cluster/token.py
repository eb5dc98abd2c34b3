"""`holdfast token`: let another host join a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.clusters.engines.kubernetes import secret as kubernetes_secret
from holdfast.errors import JobError
from holdfast.rundir.run_directory import TOKEN
from holdfast.runs.hosts.endpoint import make_token


def token(
    run: Annotated[Path, typer.Argument(help="Run directory, on the run's first host.")],
    uses: Annotated[int, typer.Option(min=1, help="Hosts that can join with it.")] = 1,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME/KEY", help="In a pod: the Secret of Kubernetes to put the token into."
        ),
    ] = None,
) -> None:
    """Make a token for an hour, and print the line with which another host joins."""
    if secret is None:
        print(make_token(run, uses))
        return
    name, slash, key = secret.partition("/")
    if not (name and slash and key):
        raise JobError(
            f"--secret {secret}: give the Secret's name and a key of it, as in join/token"
        )
    make_token(run, uses)
    kubernetes_secret.put(name, key, (run / TOKEN).read_bytes(), os.environ)
    print(f"Secret {name} has a new token in {key}, for {uses} agents")
