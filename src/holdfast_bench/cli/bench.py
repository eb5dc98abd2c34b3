"""`holdfast bench NAME`: one benchmark.

Each benchmark is a module that runs in a process of its own, which also reads its options: a
command here forwards them.
"""

from __future__ import annotations

import typer

from holdfast_bench.cli.run import run
from holdfast_bench.suite.catalogue import BENCHMARKS

app = typer.Typer(help="Measure holdfast on this machine.", no_args_is_help=True)

_FORWARDED = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

for each in BENCHMARKS:
    app.command(each.name, help=each.text, context_settings=_FORWARDED)(run)
