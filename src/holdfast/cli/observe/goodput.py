"""`holdfast goodput`: show where the time of a run went."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.cli.arguments import Json, NewestRun, run_directory
from holdfast.record.goodput import Cause
from holdfast.record.run_record import Goodput, RunRecord

WORDS: Final = {
    Cause.USEFUL: "useful steps",
    Cause.DATA: "waiting for data",
    Cause.IMBALANCE: "waiting for workers",
    Cause.CHECKPOINT: "checkpoints",
    Cause.EVALUATION: "evaluation",
    Cause.VERIFICATION: "shard verification",
    Cause.FEWER_WORKERS: "fewer workers than asked for",
    Cause.INITIALIZATION: "initialization",
    Cause.DETECTION: "recovery: detecting the failure",
    Cause.NEW_GENERATION: "recovery: forming a generation",
    Cause.STATE_TRANSFER: "recovery: transferring the state",
    Cause.RECOMPUTED: "work done again",
    Cause.STOPPED: "stopped between attempts",
    Cause.ENDING: "ending",
}
"""Name of each cause."""


def goodput(run: NewestRun = None, as_json: Json = False) -> None:
    """Show which share of a run's time was useful, and what took the rest."""
    found = RunRecord(run_directory(run)).goodput()
    if as_json:
        seconds = {cause.value: round(spent, 6) for cause, spent in found.seconds.items()}
        facts = {"total_s": round(found.total_s, 6), "goodput": round(found.share, 6)}
        facts["samples_per_s"] = round(found.samples_per_s, 3)
        print(json.dumps({**facts, "seconds": seconds}))
        return
    Console().print(_table(found))
    print(
        f"{100 * found.share:.1f} % of {timedelta(seconds=round(found.total_s))} was useful; "
        f"goodput {found.samples_per_s:,.1f} samples per second"
    )


def _table(found: Goodput) -> Table:
    table = Table(box=box.SIMPLE, title="where the time went", title_justify="left")
    table.add_column("cause")
    for name in ("seconds", "share"):
        table.add_column(name, justify="right")
    for cause, words in WORDS.items():
        if spent := found.seconds[cause]:
            table.add_row(words, f"{spent:,.2f}", f"{100 * spent / found.total_s:.1f} %")
    return table
