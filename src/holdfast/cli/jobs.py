"""`holdfast jobs`: list the built-in jobs."""

from __future__ import annotations

import json

from holdfast.cli.arguments import Json
from holdfast.job import load


def jobs(as_json: Json = False) -> None:
    """List the built-in jobs; `holdfast train NAME --dry-run` prints all keys of one."""
    summaries = {name: load.summary(name) for name in load.builtin_names()}
    if as_json:
        print(json.dumps(summaries))
        return
    for name, summary in summaries.items():
        print(f"{name:<20}{summary}")
