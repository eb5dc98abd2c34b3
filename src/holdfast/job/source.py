"""YAML source: the values of a file, and the origin of each: a line of it, or an override."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from holdfast.errors import JobError

Path = Sequence[str | int]
"""The path of a value: keys, and indices of lists, from the outside in."""


class YamlSource:
    """A YAML file with overrides.

    Args:
        text: The content of the file.
        where: Its name in messages.

    Attributes:
        values: The file's values, with the overrides applied so far.

    Raises:
        JobError: The text is not YAML, or not a mapping.
    """

    def __init__(self, text: str, where: str) -> None:
        self._root, values = _parse(text, where)
        if not isinstance(values, dict):
            raise JobError(f"{where} must be a mapping of keys to values, not {values!r:.100}")
        self.values: dict[str, Any] = values
        self._overrides: dict[tuple[str, ...], str] = {}

    def override(self, text: str) -> None:
        """Apply `key=value`, where key may be dotted and value is YAML.

        Raises:
            JobError: It is not of this form, or the value is not YAML.
        """
        dotted, equals, value = text.partition("=")
        if not equals or not dotted:
            raise JobError(f"{text!r} is not key=value, such as workers=2 or optimizer.lr=0.01")
        self.assign(dotted, _parse(value, text)[1], text)

    def assign(self, dotted: str, value: Any, text: str) -> None:
        """Set the value at a key, which may be dotted; `text` names it in messages.

        Raises:
            JobError: A part of the dotted key is not a mapping.
        """
        *parents, last = path = dotted.split(".")
        inner = self.values
        for key in parents:
            if inner.get(key) is None:
                inner[key] = {}
            inner = inner[key]
            if not isinstance(inner, dict):
                raise JobError(f"{dotted}: {key} is a single value in this job, without keys")
        inner[last] = value
        self._overrides[tuple(path)] = text

    def overridden(self, path: Path) -> str | None:
        """The newest override that set the value at `path`, or a part of it."""
        for key, text in reversed(self._overrides.items()):
            shared = min(len(key), len(path))
            if key[:shared] == tuple(path[:shared]):
                return text
        return None

    def line(self, path: Path) -> int | None:
        """The line of the value at `path`, or of the innermost part around it in the file."""
        node = self._root
        line = None
        for part in path:
            entry = _entry(node, part)
            if entry is None:
                break
            marked, node = entry
            line = marked.start_mark.line + 1
        return line


def _entry(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The key node and the value node of `part` in `node`; the last pair if there are several."""
    match node:
        case yaml.MappingNode():
            entries = [entry for entry in node.value if entry[0].value == str(part)]
            return entries[-1] if entries else None
        case yaml.SequenceNode() if isinstance(part, int) and part < len(node.value):
            return node.value[part], node.value[part]
    return None


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML's own loader takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"{key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(
                    problem=problem, problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _parse(text: str, where: str) -> tuple[yaml.Node | None, Any]:
    """The nodes of a YAML document, which have line numbers, and its plain values."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
        plain = json.loads(json.dumps(values, allow_nan=False))
        if plain != values:
            raise ValueError("it has a key that is not a string")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark if "\n" in text else None  # an override has only one line
        line = f", line {mark.line + 1}" if mark else ""
        raise JobError(f"{where}{line} cannot be read: {error.problem}") from None
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise JobError(
            f"{where} cannot be read: {reason}; "
            "it may contain finite numbers, strings, lists and mappings"
        ) from None
    return node, plain  # without values that YAML anchors share
