"""Mistakes in a job, in one line: their place, their key, and what was probably meant."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from holdfast.job import keys
from holdfast.job.part import VALUE
from holdfast.job.source import YamlSource
from holdfast.job.spec import is_script

_OF_OTHERS: Final = {
    "gpus_per_worker": "set resources.gpus",
    "nproc_per_node": "set workers to the number on all hosts, and hosts",
    "nnodes": "set hosts",
}
"""Remedies for keys that others have."""
_ONE_GPU: Final = "a worker computes on one GPU: set workers to the number of GPUs"
"""The same for a training job."""


def named(error: ValidationError, values: Mapping[str, Any], given: YamlSource | None) -> str:
    """All mistakes, to be appended to the job's name: those of its file first, line by line.

    Args:
        error: The result of checking `values`.
        values: The values of the job.
        given: Their source, if it is known.
    """
    problems = [_mistake(mistake, values, given) for mistake in error.errors()]
    problems.sort(key=lambda each: each[0] or math.inf)
    text = "; ".join(f"line {line}: {text}" if line else text for line, text in problems)
    joint = ", " if problems[0][0] else ": "
    return joint + " ".join(text.split())


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """A question that suggests the nearest of `choices`, if any is near."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {close[0]}?" if close else None


def _mistake(
    mistake: Any, values: Mapping[str, Any], given: YamlSource | None
) -> tuple[int | None, str]:
    """One of pydantic's errors: its line, if it is in a file, and its message with the key."""
    path = _path(mistake["loc"], values)
    if mistake["type"].startswith("union_tag"):
        path.append("name")
    if mistake["type"] == "extra_forbidden":
        text = f"unknown key {_dotted(path)}; {_instead(path, values, given)}"
    else:
        text = f"{_dotted(path)}: {problem(mistake, path, values)}"
    if given is None:
        return None, text
    override = given.overridden(path)
    if override is not None and mistake["type"] != "withheld":
        return None, f"{text} (from {override})"
    return given.line(path), text


def problem(mistake: Any, path: list[str | int], values: Mapping[str, Any]) -> str:
    """Words for what is wrong with the value at `path`."""
    kind = mistake["type"]
    got = mistake.get("input")
    if kind == "withheld":  # what was given may be a secret
        return str(mistake["msg"])
    if kind == "value_error":  # one of ours, complete already
        return str(mistake["ctx"]["error"])
    if kind.startswith("union_tag"):
        *others, last = map(repr, keys.words(values)[_dotted(path)])
        message = f"Input should be {', '.join(others)} or {last}"
        got = mistake["ctx"].get("tag")
    elif kind in ("dict_type", "model_type", "model_attributes_type"):
        message = "Input should be a mapping of keys to values"
    else:
        message = re.split(", (?:unable to|got) ", mistake["msg"])[0]
        if mistake["loc"][-1] == VALUE and kind.startswith(("int_", "bool_")):
            message += " or auto"
    shown = f", not {got!r:.100}" if isinstance(got, str | int | float | None) else ""
    if isinstance(got, bool):
        shown += f" (YAML reads {'on and yes' if got else 'off and no'} as {got})"
    if kind.startswith("model_") and isinstance(got, str):
        name = f"{_dotted(path)}.name"
        shown += f"; did you mean {name}={got}?" if name in keys.words(values) else ""
    return f"{message[0].lower()}{message[1:]}{shown}"


def _path(loc: tuple[str | int, ...], values: Any) -> list[str | int]:
    """The path of a mistake without the names of variants, such as `mlp`, that pydantic adds."""
    path: list[str | int] = []
    for depth, part in enumerate(loc):
        last = depth == len(loc) - 1
        if last and part == VALUE:
            break
        if path and not last and isinstance(values, Mapping) and values.get("name") == part:
            continue
        path.append(part)
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            values = None
    return path


def _instead(path: list[str | int], values: Mapping[str, Any], given: YamlSource | None) -> str:
    """Remedy for an unknown key."""
    *parents, last = map(str, path)
    if not parents and last in _OF_OTHERS:
        is_of_worker = last == "gpus_per_worker" and not is_script(values)
        return _ONE_GPU if is_of_worker else _OF_OTHERS[last]
    close = nearest(last, keys.below(values, *parents))
    replaced = given.overridden([*parents, "name"]) if given and parents else None
    if close is None and replaced is not None and ".name=" in replaced:
        part, _, name = replaced.partition(".name=")
        return f"to replace the whole part write '{part}={{name: {name}}}'"
    return close or "remove it"


def _dotted(path: list[str | int]) -> str:
    return ".".join(map(str, path))
