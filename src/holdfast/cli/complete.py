"""Shell completion of jobs, keys and values.

Every command imports this module, and almost none completes: what a job is made of is imported in
the functions.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from holdfast.errors import JobError
from holdfast.rundir.run_directory import RUNS


def job(incomplete: str) -> list[str]:
    """Built-in jobs, and job files and folders that start with `incomplete`."""
    from holdfast.job import load

    head, slash, begun = incomplete.rpartition("/")
    with suppress(OSError):  # no such folder
        near = [path for path in Path(head + slash).iterdir() if path.name.startswith(begun)]
        names = [path.name for path in near if path.suffix in {".yaml", ".yml"}]
        names += [f"{path.name}/" for path in near if path.is_dir() and path.name[0] != "."]
        return [*load.builtin_names(), *(head + slash + name for name in sorted(names))]
    return load.builtin_names()


def run(incomplete: str) -> list[str]:
    """Directories of runs that start with `incomplete`."""
    return sorted(name for path in RUNS.glob("*/") if (name := str(path)).startswith(incomplete))


def override(context: typer.Context) -> list[str]:
    """Keys of the job, each with the words that it accepts, or with its current value."""
    from holdfast.job import keys

    # bash splits `key=value` into three words, and typer drops a `=` at the end.
    given = f"{' '.join(context.params.get('overrides') or [])} ".replace(" = ", "=").split()
    values = _values(context.params.get("job") or "", given)
    offers = {key: words or _present(values, key) for key, words in keys.words(values).items()}
    begun = given[-1].removesuffix("=") if given else ""
    if begun in offers:
        return offers[begun]
    # With `key=` among the offers, bash completes to it and adds no space.
    return [f"{key}={word}" for key, words in offers.items() for word in ["", *words]]


def _values(name: str, overrides: list[str]) -> dict[str, Any]:
    """The values of the job so far, with all defaults if it is valid."""
    from holdfast.job import load

    try:
        given = load.source(name)
    except JobError:
        return {}
    for text in overrides:
        with suppress(JobError):
            given.override(text)
    with suppress(JobError):
        return load.request(given.values, where=name).model_dump(mode="json")
    return given.values


def _present(values: Any, key: str) -> list[str]:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    if values is None:
        return []
    return [values if isinstance(values, str) else json.dumps(values, separators=(",", ":"))]
