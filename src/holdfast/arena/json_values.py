"""JSON values: Python values of schedulers and parameter groups as JSON, and back.

JSON has no tuples, infinities or tensors, and only strings as keys. Each of these is written as an
object with one key that begins with `$`.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, defaultdict
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from holdfast.arena.tensors import DTYPES, field_of
from holdfast.errors import JobError
from holdfast.linux.files import is_installed

_FOLLOWED: Final = 1000
"""The maximum length of a list or dictionary whose changes in place are detected."""
_DEPTH: Final = 3
"""Objects within objects that are looked at."""
_FLOATS: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode(value: object, name: str) -> Any:  # noqa: PLR0911  # one for each kind of value
    """`value` as JSON data.

    Args:
        value: None, numbers, strings, tensors, and lists, tuples and dictionaries of these.
        name: Its name in errors.

    Raises:
        JobError: It holds something else.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else {"$float": str(float(value))}
        case list():
            return [encode(each, f"{name}[{at}]") for at, each in enumerate(value)]
        case tuple() if not hasattr(value, "_fields"):
            return {"$tuple": encode(list(value), name)}
        case Counter():
            return {"$counter": encode(list(map(list, value.items())), name)}
        case dict() if _is_plain(value):
            return {key: encode(each, f"{name}.{key}") for key, each in value.items()}
        case dict() if not isinstance(value, defaultdict):
            return {"$dict": encode(list(map(list, value.items())), name)}
        case torch.Tensor() if value.layout is torch.strided and not isinstance(value, Parameter):
            data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            field = field_of(name, value)
            text = base64.b64encode(data).decode()
            return {"$tensor": [field.dtype, list(field.shape), text]}
    if isinstance(value, np.generic):
        return encode(value.item(), name)
    raise JobError(
        f"{name} is a {type(value).__name__}, which can be neither saved nor sent to another "
        "worker; keep numbers, strings, tensors, and lists and dictionaries of these"
    )


def in_place(old: Any, new: Any, used: set[int] | None = None) -> Any:
    """`new` within the lists and dictionaries of `old`, where both have one at the same place: user
    code may hold them under names of its own.

    Args:
        old: A value; its lists and dictionaries are changed.
        new: Takes its place.
        used: The ids of what holds another part of `new` already.
    """
    used = set() if used is None else used
    if type(old) is not type(new) or not isinstance(new, list | dict):
        return new
    if id(old) in used:  # one object at two places, which may be two objects from here on
        return old if repr(old) == repr(new) else new
    used.add(id(old))
    if isinstance(new, dict):
        entries = {key: in_place(old.get(key), each, used) for key, each in new.items()}
        old.clear()
        old.update(entries)
    else:
        parts = zip_longest(old[: len(new)], new)
        old[:] = [in_place(before, each, used) for before, each in parts]
    return old


class ValueVersion:
    """Detects whether a value was changed in place or replaced, without a copy of tensors.

    Args:
        value: Any value; changes in place are detected for tensors, and for lists and dictionaries
            of at most 1,000 items.
    """

    def __init__(self, value: object) -> None:
        self.value = value
        self._seen = _seen(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueVersion) and self._seen == other._seen

    def __hash__(self) -> int:
        return hash(type(self))


class _Object:
    """An object that equals only itself; held, so that no other object gets its address."""

    def __init__(self, held: object, version: int = 0) -> None:
        self._held = held
        self._version = version

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Object)
            and self._held is other._held
            and self._version == other._version
        )

    def __hash__(self) -> int:
        return id(self._held)


def is_users_object(value: object) -> bool:
    """True for an instance of a class of user code that may keep numbers: no module or optimizer,
    and no class of an installed package.
    """
    if isinstance(value, nn.Module | Optimizer | type) or not hasattr(value, "__dict__"):
        return False
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    return type(value).__module__ != "builtins" and not is_installed(file)


def _seen(value: object, depth: int = 0) -> object:  # noqa: PLR0911  # one for each kind of value
    match value:
        case None | bool() | int() | str():
            return (type(value), value)
        case float():
            return value.hex()
        case list() | tuple() if len(value) <= _FOLLOWED:
            return (type(value), [_seen(each, depth) for each in value])
        case dict() if len(value) <= _FOLLOWED:
            return [(_seen(key), _seen(each, depth)) for key, each in value.items()]
        case Parameter():
            return _Object(value)
        case torch.Tensor() if not value.is_inference():
            return _Object(value, value._version)
        case _ if depth < _DEPTH and is_users_object(value):
            return (_Object(value), _seen(vars(value), depth + 1))
    return _Object(value)


def _is_plain(value: dict[Any, Any]) -> bool:
    """True if a dictionary can be written as a JSON object."""
    strings = all(isinstance(key, str) and not key.startswith("$") for key in value)
    return strings and not isinstance(value, defaultdict)


def decode(plain: Any) -> Any:  # noqa: PLR0911  # one for each kind of value
    """The inverse of `encode`."""
    match plain:
        case list():
            return [decode(each) for each in plain]
        case {"$float": str(text)}:
            return _FLOATS[text]
        case {"$tuple": items}:
            return tuple(decode(items))
        case {"$counter": items}:
            return Counter(dict(decode(items)))
        case {"$dict": items}:
            return dict(decode(items))
        case {"$tensor": [str(dtype), list(shape), str(text)]}:
            data = bytearray(base64.b64decode(text))
            if not data:
                return torch.empty(shape, dtype=DTYPES[dtype])
            return torch.frombuffer(data, dtype=DTYPES[dtype]).view(shape)
        case dict():
            return {key: decode(each) for key, each in plain.items()}
    return plain
