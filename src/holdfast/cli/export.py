"""`holdfast export`: write the trained weights to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import CheckpointError


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="Directory of a run or a checkpoint.")
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A .safetensors, .pt or .pth file; a folder for a model of transformers.",
        ),
    ],
    of: Annotated[
        str | None,
        typer.Option(help="Registered module, or one of several models; default: the model."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Export the run's best checkpoint, not the newest.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write the trained weights to a file for PyTorch, safetensors or transformers."""
    from holdfast.checkpoint import export as to_file
    from holdfast.checkpoint.weights import find_checkpoint

    checkpoint = find_checkpoint(source, best=best)
    try:
        to_file.export(checkpoint, target, of, replace=force)
    except OSError as error:
        raise CheckpointError(f"{error.filename or checkpoint}: {error.strerror}") from None
    print(f"{checkpoint} -> {target}")
