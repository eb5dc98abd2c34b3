"""`holdfast export`: write the trained weights, or the record of a run, to files."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.checkpoint.find import find_checkpoint
from holdfast.cli.arguments import run_directory
from holdfast.errors import CheckpointError, JobError


class Format(enum.StrEnum):
    """Choices of `--format`: a format of weights, or one of the record of a run."""

    DCP = "dcp"
    CSV = "csv"
    PARQUET = "parquet"
    PNG = "png"


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="Directory of a run or a checkpoint.")
    ],
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A .safetensors, .pt or .pth file; a folder for a model of transformers, adapters "
            "of peft, or with --format dcp. With another --format: a folder for tables, by default "
            "RUN/tables, or a .png file, by default RUN/record.png.",
        ),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(help="Registered module, or one of several models; default: the model."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Export the run's best checkpoint, not the newest.")
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key of an encrypted checkpoint; default: the one of the run's job."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="dcp: export the weights for torch.distributed.checkpoint. Others: export the "
            "record of the run, tables as csv or parquet, charts as png.",
        ),
    ] = None,
) -> None:
    """Write the trained weights for PyTorch, safetensors or transformers, or the record of a run.

    The suffix of FILE, or --format dcp, says how weights are written; another --format exports the
    tables or charts of a run.
    """
    if form is not None and form is not Format.DCP:
        if of is not None or best or key_file is not None:
            raise JobError(
                f"--of, --best and --key-file are for weights; they do not go with --format {form}"
            )
        _export_record(run_directory(source), target, form, force=force)
        return
    if target is None:
        raise JobError("name the FILE for the weights, or --format for the record of the run")
    from holdfast.checkpoint.exports.export import export as write

    checkpoint = find_checkpoint(source, best=best)
    try:
        write(checkpoint, target, of, key_file, replace=force, is_dcp=form is Format.DCP)
    except OSError as error:
        raise CheckpointError(f"{error.filename or checkpoint}: {error.strerror}") from None
    print(f"{checkpoint} -> {target}")


def _export_record(run: Path, target: Path | None, form: Format, *, force: bool) -> None:
    from holdfast.record.run_record import RunRecord
    from holdfast.record.views import export as record_export

    default = run / ("record.png" if form is Format.PNG else "tables")
    where = default if target is None else target
    is_there = where.exists() if form is Format.PNG else any(where.glob(f"*.{form}"))
    if is_there and not force:
        raise JobError(f"{where} exists; --force replaces it")
    record = RunRecord(run)
    try:
        if form is Format.PNG:
            record_export.write_figure(record, where)
            print(f"{run} -> {where}")
            return
        for name, rows in record_export.write_tables(record, where, form.value).items():
            print(f"{where / name}.{form}  {rows} rows")
    except OSError as error:
        raise JobError(f"{error.filename or where}: {error.strerror}") from None
