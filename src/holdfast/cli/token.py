"""`holdfast token`: let another host join a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.runs.endpoint import make_token


def token(
    run: Annotated[Path, typer.Argument(help="Run directory, on the run's first host.")],
    uses: Annotated[int, typer.Option(min=1, help="Hosts that can join with it.")] = 1,
) -> None:
    """Make a token for an hour, and print the line with which another host joins."""
    print(make_token(run, uses))
