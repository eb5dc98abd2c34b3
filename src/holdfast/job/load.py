"""From a job's name or file and `key=value` overrides to a checked `Job`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.errors import JobError
from holdfast.job.spec import Job

BUILTIN = Path(__file__).parent / "builtin"

VARIANTS = frozenset(
    name
    for definition in Job.model_json_schema()["$defs"].values()
    for tag in [definition["properties"].get("name", {})]
    for name in [tag.get("const"), *tag.get("enum", [])]
    if name
)
"""The names of the variants of a part, such as `mlp`; pydantic counts them to a fault's place."""


def builtin_names() -> list[str]:
    """The names of the built-in jobs."""
    return sorted(path.stem for path in BUILTIN.glob("*.yaml"))


def summary(name: str) -> str:
    """The first line of a built-in job's own description."""
    first = (BUILTIN / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("# ")


def load(job: str, overrides: Iterable[str] = ()) -> Job:
    """The job called `job` (a YAML file, or the name of a built-in one) with `overrides` applied.

    Args:
        job: A path that ends in .yaml or .yml, or a built-in name.
        overrides: `key=value` each, where key may be dotted and value is YAML.

    Raises:
        JobError: There is no such job, or a key or value in it is wrong.
    """
    path = Path(job) if job.endswith((".yaml", ".yml")) else BUILTIN / f"{job}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        names = builtin_names()
        hint = _nearest(job, names) or f"built in are {', '.join(names)}"
        raise JobError(f"no job {job!r}: {error.strerror}; {hint}, or name a .yaml file") from None
    values = _parse(text, str(path))
    if not isinstance(values, dict):
        raise JobError(f"{path}: a job is a mapping of keys to values, not {values!r}")
    values.setdefault("name", path.stem)
    for override in overrides:
        _apply(values, override)
    return check(values, where=str(job))


def check(values: Mapping[str, Any], where: str) -> Job:
    """The job that `values` describe.

    Raises:
        JobError: A key or value is wrong; every fault is named.
    """
    try:
        return Job.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(_fault(fault) for fault in error.errors())
        raise JobError(f"job {where}: {faults}") from None


def dump(job: Job) -> str:
    """The job as YAML that `load` reads back as the same job."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False)


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError(f"{where} is not YAML: {' '.join(str(error).split())}") from None


def _apply(values: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise JobError(f"{override!r} is not key=value, such as workers=2 or optimizer.lr=0.01")
    *parents, last = dotted.split(".")
    inner = values
    for key in parents:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise JobError(f"{dotted}: {key} has no keys of its own in this job")
    inner[last] = _parse(text, override)


def _fault(fault: Any) -> str:
    """One of pydantic's faults, as `key: what is wrong (and what may be meant)`."""
    path = [part for part in fault["loc"] if part not in VARIANTS]
    key = ".".join(str(part) for part in path)
    if fault["type"] == "extra_forbidden":
        *parents, last = path
        return f"unknown key {key}; {_nearest(str(last), _keys(parents)) or 'remove it'}"
    got = fault.get("input")
    shown = f", not {got!r}" if isinstance(got, str | int | float | bool | None) else ""
    return f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}{shown}"


def _keys(parents: list[Any]) -> list[str]:
    """The keys that a job knows below `parents`, over all variants of that part."""
    schema = Job.model_json_schema()
    part: dict[str, Any] = schema
    for parent in parents:
        part = part.get("properties", {}).get(parent, {})
    found: list[str] = []
    pending = [part]
    while pending:
        part = pending.pop()
        found += part.get("properties", {})
        pending += part.get("anyOf", []) + part.get("oneOf", [])
        if "$ref" in part:
            pending.append(schema["$defs"][part["$ref"].rpartition("/")[2]])
    return found


def _nearest(word: str, choices: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {close[0]}?" if close else None
