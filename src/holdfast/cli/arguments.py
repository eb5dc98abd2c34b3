"""Arguments that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import complete
from holdfast.errors import JobError

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
Json = Annotated[bool, typer.Option("--json", help="Print one object.")]
EndingJson = Annotated[
    bool,
    typer.Option("--json", help="End standard output with the result or error as one object."),
]


def ranks(tee: str | None, workers: int) -> frozenset[int]:
    """The ranks that `--tee` names.

    Raises:
        JobError: There is no such rank.
    """
    if tee is None:
        return frozenset()
    known = {str(rank): rank for rank in range(workers)}
    named = list(known) if tee == "all" else tee.split(",")
    wrong = [name for name in named if name not in known]
    if wrong:
        raise JobError(
            f"--tee {tee}: {wrong[0]!r} is no rank; write all, or ranks up to {workers - 1}"
        )
    return frozenset(known[name] for name in named)
