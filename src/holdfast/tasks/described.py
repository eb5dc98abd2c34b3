"""Described: plain values and objects of the user's classes as JSON, which rebuilds them exactly.

Nothing is unpickled or called: a description names what can be imported, and holds attributes. Of
any other value it has the type only, so that one cannot be rebuilt.
"""

from __future__ import annotations

import enum
import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any, Final

from holdfast.linux.files import is_installed

MAX_DEPTH: Final = 20
MAX_PARTS: Final = 100_000
"""The most levels and parts of a container; a larger one is described by its type only."""
_PLAIN_BASES: Final = {"Namespace", "_AttributeHolder", "SimpleNamespace", "ABC", "Generic"}
"""Classes that keep nothing outside of an object's attributes."""
_CONTAINERS: Final = MappingProxyType(
    {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
)
_DICTIONARIES: Final = MappingProxyType(
    {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict}
)
MUTABLE: Final = frozenset({"list", "set", "deque", "dict", "object"})
"""The first words of descriptions of what can change in place."""


def is_own(module: str) -> bool:
    """True if an imported module is the user's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    is_ours = module.partition(".")[0] in ("holdfast", "holdfast_bench")
    return bool(file) and not is_ours and not is_installed(str(file))


def named(name: str) -> Any:
    """The class, function or member that a description names.

    Raises:
        ValueError: This process has not got it.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = sys.modules.get(module) or import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise ValueError(path) from None
    return found


def name_of(value: Any, main: str) -> str | None:
    """The name of a class or function in workers, where the program is called `main`."""
    module = str(getattr(value, "__module__", None))
    name = f"{module}:{getattr(value, '__qualname__', '')}"
    found: Any = sys.modules.get(module)
    for part in name.partition(":")[2].split("."):
        found = getattr(found, part, None)
    return name.replace("__main__:", f"{main}:") if found is value else None


def describe(value: Any, main: str) -> Any:
    """The description of a value; see `name_of`."""
    return _Writer(main).of(value, 0)


class _Writer:
    def __init__(self, main: str) -> None:
        self._main = main
        self._parts = 0

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._parts += 1
        if value is None or kind in (bool, int, float, str):
            return value
        name = name_of(kind, self._main)
        known = self._of_one(value, kind, name)
        if known is None and name is not None:
            known = self._of_parts(value, kind, name, depth)
        return known or ["opaque", f"{kind.__module__}.{kind.__qualname__}"]

    def _of_one(self, value: Any, kind: type, name: str | None) -> Any:
        if isinstance(value, Path):
            return ["path", str(value)]
        if kind.__module__ == "torch" and kind.__name__ == "dtype":
            return ["name", str(value).replace(".", ":")]
        if kind.__module__ == "torch" and kind.__name__ == "device":
            return ["device", str(value)]
        if isinstance(value, enum.Enum) and name:
            is_member = value.name in kind.__members__  # type: ignore[attr-defined]
            return ["name", f"{name}.{value.name}"] if is_member else None
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            found = name_of(value, self._main)
            return ["name", found] if found else ["opaque", kind.__name__]
        return None

    def _of_parts(self, value: Any, kind: type, name: str | None, depth: int) -> Any:
        is_plain = hasattr(value, "__dict__") and _keeps_attributes(kind)
        parts = vars(value) if is_plain else value
        is_bounded = kind is deque and value.maxlen is not None
        is_container = kind in (*_DICTIONARIES.values(), *_CONTAINERS.values())
        is_known = is_plain or (is_container and not is_bounded)
        if not is_known or depth > MAX_DEPTH or self._parts + len(parts) > MAX_PARTS:
            return None
        if isinstance(parts, dict):
            items = [[self.of(key, depth), self.of(parts[key], depth + 1)] for key in parts]
            made = getattr(value, "default_factory", None)
            as_dictionary = ["dict", kind.__name__, self.of(made, depth), items]
            return ["object", name, items] if is_plain else as_dictionary
        each = [self.of(part, depth + 1) for part in parts]
        word = kind.__name__
        return [word, sorted(each, key=json.dumps) if "set" in word else each]


def _keeps_attributes(kind: type) -> bool:
    """True if objects of a class are their attributes: no base of it is of a library."""
    bases = [each for each in kind.__mro__[:-1] if each.__qualname__ not in _PLAIN_BASES]
    return all(is_own(each.__module__) for each in bases)


def rebuilt(described: Any) -> Any:
    """A new value of a description.

    Raises:
        ValueError: It holds a type only.
    """
    if not isinstance(described, list):
        return described
    match described:
        case ["path" | "name" | "device" as word, str(text)]:
            if word == "device":
                return import_module("torch").device(text)
            return Path(text) if word == "path" else named(text)
        case ["dict", kind, default, items]:
            new = _DICTIONARIES[kind]() if default is None else defaultdict(rebuilt(default))
            new.update({rebuilt(key): rebuilt(each) for key, each in items})
            return new
        case ["object", name, items]:
            new = object.__new__(named(name))
            vars(new).update({key: rebuilt(each) for key, each in items})
            return new
        case [kind, items] if kind in _CONTAINERS:
            return _CONTAINERS[kind](map(rebuilt, items))
    raise ValueError(described[1])


def replace_content(old: Any, new: Any) -> bool:
    """Give an object the content of another of its type; False if it keeps its own."""
    if type(old) is not type(new):
        return False
    if isinstance(old, list | deque):
        old.clear()
        old.extend(new)
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif hasattr(old, "__dict__") and not isinstance(old, type | FunctionType | enum.Enum):
        vars(old).clear()
        vars(old).update(vars(new))
    else:
        return False
    return True
