"""Code by value: a task that no other process can import, such as a function of a notebook.

The launching process packs it with cloudpickle. It travels to the fork server, a child of the same
user, over a socket that the child inherits, and is unpacked there once, before any worker is
forked. It is never written to a file or sent over a network, and data do not travel with it
(decision 25).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import cloudpickle

from holdfast.errors import JobError

PREFIX: Final = "by value: "
"""Prefix of the name of such a task, in place of a reference."""
MAX_BYTES: Final = 1 << 20

_packed: dict[str, bytes] = {}
_unpacked: dict[str, Callable[..., Any]] = {}


def name_of(task: Callable[..., Any]) -> str:
    """The name of the task in its job."""
    return PREFIX + plain_name(task)


def plain_name(task: Callable[..., Any]) -> str:
    """The name of a function or class, also of one that a partial calls."""
    while isinstance(task, functools.partial):
        task = task.func
    name = getattr(task, "__name__", type(task).__name__)
    return "lambda" if name == "<lambda>" else name


def pack(task: Callable[..., Any]) -> bytes:
    """The code of a task, for a child of this process.

    Raises:
        JobError: It holds something that cannot travel, or too much data.
    """
    packed = _dumped(task, plain_name(task))
    if len(packed) > MAX_BYTES:
        sizes = {name: _size(value) for name, value in captured(task).items()}
        largest = max(sizes, key=lambda name: sizes[name], default="")
        what = f"{largest} ({sizes[largest]:,} bytes)" if largest else "data"
        raise JobError(
            f"{plain_name(task)} uses {what}, and data do not travel with code: build or load it "
            "in a function that is called there, or define both in a file"
        )
    return packed


def source_of(task: Callable[..., Any]) -> str:
    """The source text of a task, for people; a comment if there is none."""
    while isinstance(task, functools.partial):
        task = task.func
    try:
        return inspect.getsource(task)
    except (OSError, TypeError):
        return f"# {plain_name(task)} was typed in; its source text is not known\n"


def keep(name: str, packed: bytes) -> None:
    """Make a packed task known to this process, and to those that are forked from it."""
    _packed[name] = packed
    _unpacked.pop(name, None)


def unpacked(name: str) -> Callable[..., Any]:
    """The task called `name`.

    Raises:
        JobError: This process has not got it, or something that it needs is not there.
    """
    if name not in _packed:
        raise JobError(
            f"task {name} exists in the process that started the run only; continue the run there, "
            "with holdfast.train(…, resume=True)"
        )
    if name not in _unpacked:
        try:
            _unpacked[name] = cloudpickle.loads(_packed[name])
        except Exception as error:  # the user's modules may raise anything
            raise JobError(
                f"task {name}: its code failed to load with {type(error).__name__}: {error}"
            ) from error
    return _unpacked[name]


def captured(task: Callable[..., Any]) -> dict[str, Any]:
    """The variables outside of a function that it uses, by name."""
    values: dict[str, Any] = {}
    while isinstance(task, functools.partial):
        values |= {f"argument {number}": each for number, each in enumerate(task.args)}
        values |= task.keywords
        task = task.func
    if not inspect.isfunction(task):
        return values
    found = inspect.getclosurevars(task)
    return values | dict(found.globals) | dict(found.nonlocals)


def _size(value: object) -> int:
    try:
        return len(_dumped(value, ""))
    except JobError:
        return 0


def _dumped(value: object, name: str) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # noqa: BLE001  # the value's own methods raise anything
        raise JobError(
            f"{name} cannot be sent to other processes: {type(error).__name__}: {error}; build "
            "what it uses in a function that is called there, or define it in a file"
        ) from None
