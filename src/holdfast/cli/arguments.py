"""Arguments that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import complete

JobName = Annotated[
    str,
    typer.Argument(help="A built-in job (digits, …) or a .yaml file.", autocompletion=complete.job),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Keys of the job to set.",
        autocompletion=complete.override,
    ),
]
