"""Keys of a job and the words that each accepts, from the JSON schema of its class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.job.script_job import ScriptJob
from holdfast.job.spec import is_script
from holdfast.job.train_job import TrainRequest

Schema = dict[str, Any]


def words(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Every key of a job, dotted, and the words that it accepts; empty if it takes any value.

    Args:
        values: The job's values: a part with a `name` in them has the keys of that variant only.
    """
    kind = ScriptJob if is_script(values) else TrainRequest
    schema = kind.model_json_schema()
    return dict(_words(schema, schema["properties"], values, ""))


def below(values: Mapping[str, Any], *parents: str) -> list[str]:
    """The keys inside the part `parents`, a subset of `words`."""
    prefix = "".join(f"{parent}." for parent in parents)
    inside = (key.removeprefix(prefix) for key in words(values) if key.startswith(prefix))
    return list(dict.fromkeys(key.partition(".")[0] for key in inside))


def _words(
    schema: Schema, properties: Schema, values: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, list[str]]]:
    for key, node in properties.items():
        value = values.get(key)
        given = value if isinstance(value, Mapping) else {}
        variants = [option for option in _options(schema, node) if "properties" in option]
        if not variants:
            yield prefix + key, _literals(schema, node)
            continue
        names = [_literals(schema, variant["properties"].get("name", {})) for variant in variants]
        if any(names):
            yield f"{prefix}{key}.name", [name for each in names for name in each]
        chosen = [v for v, own in zip(variants, names, strict=True) if given.get("name") in own]
        for variant in chosen or variants:
            inner = {
                k: v for k, v in variant["properties"].items() if k != "name" or not any(names)
            }
            yield from _words(schema, inner, given, f"{prefix}{key}.")


def _options(schema: Schema, node: Schema) -> list[Schema]:
    """The alternatives of a node, after following references and choices."""
    if "$ref" in node:
        return _options(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    choices = node.get("anyOf", []) + node.get("oneOf", [])
    return [option for choice in choices for option in _options(schema, choice)] or [node]


def _literals(schema: Schema, node: Schema) -> list[str]:
    literals: list[str] = []
    for option in _options(schema, node):
        literals += [option["const"]] if "const" in option else option.get("enum", [])
        if option.get("type") == "boolean":
            literals += ["true", "false"]
    return literals
