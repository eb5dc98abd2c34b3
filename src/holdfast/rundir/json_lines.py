"""Logs of a run for programs: one JSON object a line, appended as things happen.

A line that cannot be written (the disk is full, say) is dropped: no run ends because of a
log. A line that a crash has torn is skipped by `read`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final, Self

TAIL_BYTES: Final = 1 << 18
"""Size of the end of a file that is read first, where only its end matters."""


class JsonLines:
    """Appends objects to a file.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Append no more."""
        os.close(self._fd)

    def read(self) -> Iterator[dict[str, Any]]:
        """The objects in the file, oldest first, also if its name is gone meanwhile.

        Raises:
            OSError: It cannot be read.
        """
        return (
            value for _, value in _lines(Path(f"/proc/self/fd/{self._fd}")) if value is not None
        )

    def write(self, **values: object) -> None:
        """Append one object."""
        line = b"\n" * self._torn + json.dumps(values).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._torn = os.write(self._fd, line) < len(line)


class EventLog(JsonLines):
    """The log of what happens rarely and matters: `events.jsonl`."""

    def event(self, name: str, **fields: object) -> None:
        """Note that `name` has happened now."""
        self.write(time_unix_s=round(time.time(), 6), event=name, **fields)


def number(value: float) -> float | None:
    """Replace what JSON has not: NaN and infinity become None."""
    return value if isfinite(value) else None


def finite(value: Any) -> Any:
    """`value` with None for each number in it, in lists and dictionaries too, that JSON has not."""
    match value:
        case float():
            return number(value)
        case list() | tuple():
            return [finite(each) for each in value]
        case dict():
            return {name: finite(each) for name, each in value.items()}
    return value


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file, oldest first; none if there is no such file."""
    if not path.exists():
        return
    for _, value in _lines(path):
        if value is not None:
            yield value


def objects_in(content: bytes) -> list[dict[str, Any]]:
    """The objects in lines; one that is torn is skipped."""
    return [value for line in content.split(b"\n") if (value := _object(line)) is not None]


def unreadable(path: Path) -> list[int]:
    """The numbers, from 1, of the lines in a file that `read` skips; none if there is no such file.

    A last line without its end is not one of them: it is being written, or a crash has torn it.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        whole = ((number, line) for number, line in enumerate(file, 1) if line.endswith(b"\n"))
        return [number for number, line in whole if _object(line) is None]


def last(path: Path, reach: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """The objects at the end of a file, `reach` bytes of it, oldest first; none without a file."""
    if not path.exists():
        return []
    start = max(0, path.stat().st_size - reach)
    return [value for _, value in _lines(path, start) if value is not None]


@dataclass(slots=True, kw_only=True)
class NewestSteps:
    """The newest step and evaluation among lines of `metrics.jsonl`.

    Attributes:
        step: The newest step; -1 before the first.
        evaluation: The newest step with an evaluation, likewise.
    """

    step: int = -1
    evaluation: int = -1

    def advance(self, line: Mapping[str, Any]) -> bool:
        """Count a line; returns True if its step or evaluation comes after those before it."""
        kind = "step" if "loss" in line else "evaluation"
        step = line.get("step")
        if not isinstance(step, int) or step <= getattr(self, kind):
            return False
        setattr(self, kind, step)
        return True


class StepFile:
    """The metrics of a run whose workers are on other hosts, each of which sends all that it has.

    Args:
        path: The file; it may hold the steps of earlier attempts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = NewestSteps()
        for value in last(path):
            self._newest.advance(value)

    def add(self, content: bytes) -> None:
        """Append the lines of steps and evaluations that come after those in the file."""
        new = [value for value in objects_in(content) if self._newest.advance(value)]
        if new:
            with (
                contextlib.suppress(OSError),
                self._path.open("ab") as file,
            ):  # no run ends for lack of space
                file.write(b"".join(json.dumps(value).encode() + b"\n" for value in new))


def step_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a step as a row of a table: numbers by name, without dictionaries in them."""
    row = {key: value for key, value in line.items() if not isinstance(value, dict)}
    row |= {f"{phase}_s": seconds for phase, seconds in line.get("phases", {}).items()}
    row |= line.get("logged", {})
    return row


def columns(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A table: one list per key with one item per entry, None where the key is missing."""
    rows = list(entries)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def forget_after(path: Path, step: int, *, removed: Path | None = None) -> list[dict[str, Any]]:
    """Truncate a file of steps after `step`, before it is continued from there.

    Args:
        path: The file.
        step: The last step that is left.
        removed: The file to which the lines after it are appended; None if they are not wanted.

    Returns:
        The entries of the last step that is left.
    """
    if not path.exists():
        return []
    for reach in (TAIL_BYTES, path.stat().st_size):
        start = max(0, path.stat().st_size - reach)
        end = start
        first = step
        kept = list[dict[str, Any]]()
        for line_end, value in _lines(path, start):
            if value is None or not isinstance(value.get("step"), int):
                continue  # torn, or not ours
            if value["step"] > step:
                break
            if not kept:
                first = value["step"]
            elif value["step"] != kept[-1]["step"]:
                kept.clear()
            end = line_end
            kept.append(value)
        if start == 0 or first < step:
            break
    if removed is not None:
        _append_after(path, end, removed)
    os.truncate(path, end)
    return kept


def _append_after(path: Path, start: int, copy: Path) -> None:
    """Append the whole lines of a file after `start` to another one, as far as there is space."""
    with path.open("rb") as file:
        file.seek(start)
        lines = (line for line in file if line.endswith(b"\n"))
        if first := next(lines, b""):
            with contextlib.suppress(OSError), copy.open("ab") as out:
                out.write(first)
                out.writelines(lines)


def _lines(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each line's end, bytes from the start, and what it holds; None where it is torn."""
    end = start
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            end += len(line)
            yield end, _object(line)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
