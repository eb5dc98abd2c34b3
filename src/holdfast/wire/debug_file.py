"""The coordinator's debug log in a file: the machine it started from, then a line per event.

Values of the core are written as JSON with the names of their classes. Only classes of
`holdfast.core` are made when a file is read, from their fields: no code runs that the file names.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from holdfast.core import (
    actions,
    coordinator,
    debug_log,
    events,
    heartbeats,
    links,
    membership,
    policy,
    protocol,
    reachability,
    restart_budget,
)
from holdfast.core.checkpoints import interval, tracker
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import DebugLog, LogEntry

_MODULES: Final = (
    actions, coordinator, debug_log, events, heartbeats, interval, tracker,
    links, membership, policy, protocol, reachability, restart_budget,
)  # fmt: skip
_CLASSES: Final = {
    name: each
    for module in _MODULES
    for name, each in vars(module).items()
    if isinstance(each, type) and each.__module__ == module.__name__
}
_SEQUENCES: Final = {each.__name__: each for each in (tuple, set, frozenset, deque)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugFile:
    """The content of a file.

    Attributes:
        error: Exception of the machine at the last event; empty if it raised none.
        start: The machine before the first entry.
        entries: The events, oldest first.
    """

    error: str
    start: CoordinatorStateMachine
    entries: Sequence[LogEntry]


def write(path: Path, log: DebugLog) -> None:
    """Write a log to a file, in place of an older one.

    Raises:
        OSError: The disk is full, say.
    """
    draft = path.with_suffix(".tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"error": log.error, "start": encode(log.start)}) + "\n")
            file.writelines(json.dumps(encode(entry)) + "\n" for entry in log.entries)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> DebugFile:
    """Read a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not such a file, or is of another version.
    """
    try:
        head, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return DebugFile(
            error=head["error"],
            start=cast("CoordinatorStateMachine", decode(head["start"])),
            entries=[cast("LogEntry", decode(line)) for line in lines],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a debug log of this version: {error!r}") from None


def encode(value: object) -> Any:
    """A value of the core as JSON."""
    match value:
        case enum.Enum():
            return {"enum": type(value).__name__, "name": value.name}
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [encode(each) for each in value]
        case dict():
            return {"dict": [[encode(key), encode(each)] for key, each in value.items()]}
        case tuple() | set() | frozenset() | deque():
            return {type(value).__name__: [encode(each) for each in value]}
        case _:
            fields = {name: encode(getattr(value, name)) for name in _fields(value)}
            return {"class": type(value).__name__, "fields": fields}


def decode(data: Any) -> object:
    """The value that `encode` has turned into JSON."""
    match data:
        case {"enum": name, "name": member}:
            return getattr(_CLASSES[name], member)
        case {"dict": items}:
            return {decode(key): decode(each) for key, each in items}
        case {"class": name, "fields": fields}:
            made: object = object.__new__(_CLASSES[name])
            for field, each in fields.items():
                object.__setattr__(made, field, decode(each))
            return made
        case dict():
            ((name, items),) = data.items()
            return _SEQUENCES[name](map(decode, items))
        case list():
            return [decode(each) for each in data]
        case _:
            return data


def _fields(value: object) -> Sequence[str]:
    slots: Sequence[str] | None = getattr(type(value), "__slots__", None)
    return list(vars(value)) if slots is None else slots
