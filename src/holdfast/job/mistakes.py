"""What is wrong with a job, in one line: where it stands, its key, and what may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from holdfast.job import keys
from holdfast.job.source import YamlSource


def named(error: ValidationError, values: Mapping[str, Any], given: YamlSource | None) -> str:
    """All mistakes, to be set behind the job's name.

    Args:
        error: What checking `values` gave.
        values: The job's.
        given: Where they come from, if it is known.
    """
    found = "; ".join(_mistake(mistake, values, given) for mistake in error.errors())
    joint = ", " if found.startswith("line ") else ": "
    return joint + " ".join(found.split())


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """A question that offers what `word` may have been meant to be."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {close[0]}?" if close else None


def _mistake(mistake: Any, values: Mapping[str, Any], given: YamlSource | None) -> str:
    """One of pydantic's errors: its place, its key, what is wrong, and what may be meant."""
    path = _path(mistake["loc"], values)
    if mistake["type"].startswith("union_tag"):
        path.append("name")
    if mistake["type"] == "extra_forbidden":
        text = f"unknown key {_dotted(path)}; {_instead(path, values, given)}"
    else:
        text = f"{_dotted(path)}: {problem(mistake, path, values)}"
    if given is None:
        return text
    override = given.overridden(path)
    if override is not None and mistake["type"] != "withheld":
        return f"{text} (from {override})"
    line = given.line(path)
    return text if line is None else f"line {line}: {text}"


def problem(mistake: Any, path: list[str | int], values: Mapping[str, Any]) -> str:
    """What is wrong with the value at `path`."""
    kind, got = mistake["type"], mistake.get("input")
    if kind == "withheld":  # what was given may be a secret
        return str(mistake["msg"])
    if kind == "value_error":  # one of ours, whole already
        return str(mistake["ctx"]["error"])
    if kind.startswith("union_tag"):
        *others, last = map(repr, keys.words(values)[_dotted(path)])
        message, got = f"Input should be {', '.join(others)} or {last}", mistake["ctx"].get("tag")
    elif kind in ("dict_type", "model_type", "model_attributes_type"):
        message = "Input should be a mapping of keys to values"
    else:
        message = mistake["msg"].partition(", unable to ")[0]
    shown = f", not {got!r:.100}" if isinstance(got, str | int | float | bool | None) else ""
    return f"{message[0].lower()}{message[1:]}{shown}"


def _path(loc: tuple[str | int, ...], values: Any) -> list[str | int]:
    """A mistake's place without the names of variants, such as `mlp`, that pydantic adds."""
    path: list[str | int] = []
    for depth, part in enumerate(loc):
        last = depth == len(loc) - 1
        if path and not last and isinstance(values, Mapping) and values.get("name") == part:
            continue
        path.append(part)
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            values = None
    return path


def _instead(path: list[str | int], values: Mapping[str, Any], given: YamlSource | None) -> str:
    """What to do about an unknown key."""
    *parents, last = map(str, path)
    close = nearest(last, keys.below(values, *parents))
    renamed = given.overridden([*parents, "name"]) if given and parents else None
    if close is None and renamed is not None and ".name=" in renamed:
        part, _, name = renamed.partition(".name=")
        return f"to replace the whole part write '{part}={{name: {name}}}'"
    return close or "remove it"


def _dotted(path: list[str | int]) -> str:
    return ".".join(map(str, path))
