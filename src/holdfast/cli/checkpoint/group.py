"""The group of commands `holdfast checkpoint`."""

from __future__ import annotations

import typer

from holdfast.cli.checkpoint import diff, keep, ls, show, verify

app = typer.Typer(
    help="List, check, compare and keep the checkpoints of a run.", no_args_is_help=True
)
app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("verify")(verify.verify)
app.command("diff")(diff.diff)
app.command("prune")(keep.prune)
app.command("pin")(keep.pin)
