"""Nested optimizers: those that an optimizer holds, such as one for matrices and one for the rest.

They are found in attributes, lists, tuples, dictionaries, bound methods and objects of user code.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_OPAQUE: Final = (nn.Module, torch.Tensor, LRScheduler, type, types.FunctionType, types.ModuleType)
"""Objects that are not searched."""
_LIBRARIES: Final = frozenset({"torch", "holdfast", "logging"})
"""Packages whose objects are not searched."""
_OWN: Final = frozenset({"state", "param_groups", "defaults"})


def nested(optimizer: Optimizer) -> dict[str, Optimizer]:
    """An optimizer, whose path is empty, and those that it holds, each once, by path."""
    return _search(optimizer)[0]


def all_of(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Optimizers and those that they hold, each once."""
    return list({id(n): n for each in optimizers for n in nested(each).values()}.values())


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer and of those that it holds, each once."""
    groups = (group for each in all_of([optimizer]) for group in each.param_groups)
    return list({id(group): group for group in groups}.values())


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters of an optimizer and of those that it holds, each once."""
    return list(dict.fromkeys(p for group in groups_of(optimizer) for p in group["params"]))


def states_of(optimizer: Optimizer) -> Iterator[tuple[str, dict[Any, Any]]]:
    """The state of an optimizer and of those that it holds, each once, by path."""
    seen = set[int]()
    for path, each in nested(optimizer).items():
        if id(each.state) not in seen:
            seen.add(id(each.state))
            yield path, each.state


class Shadows:
    """Copies of an optimizer and of what it holds, which can be stepped in its place.

    Args:
        optimizer: The optimizer.
        tensor: Gives the copy of a tensor.
    """

    def __init__(
        self, optimizer: Optimizer, tensor: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._tensor = tensor
        self._holders = _search(optimizer)[1]
        self._copies: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """The copy of a value: the same for the same one."""
        if id(value) not in self._copies:
            self._copies[id(value)] = value  # of one that is not copied
            match value:
                case torch.Tensor():
                    self._copies[id(value)] = self._tensor(value)
                case list():
                    copied = list[Any]()
                    self._copies[id(value)] = copied
                    copied += map(self.of, value)
                case dict():
                    self._copies[id(value)] = entries = copy.copy(value)
                    entries.clear()
                    entries.update((self.of(key), self.of(each)) for key, each in value.items())
                case tuple() if type(value) is tuple:
                    self._copies[id(value)] = tuple(map(self.of, value))
                case types.MethodType():
                    bound = types.MethodType(value.__func__, self.of(value.__self__))
                    self._copies[id(value)] = bound
                case _ if id(value) in self._holders:
                    # Without its constructor: nothing is to happen but the step.
                    self._copies[id(value)] = shadow = object.__new__(type(value))
                    vars(shadow).update(self.of(vars(value)))
                    if isinstance(value, Optimizer):
                        vars(shadow).pop("step", None)  # with which a scheduler counts
        return self._copies[id(value)]


def _search(optimizer: Optimizer) -> tuple[dict[str, Optimizer], set[int]]:
    """What `nested` returns, and the ids of these and of all objects that hold one of them."""
    found: dict[str, Optimizer] = {}
    holders_of: dict[int, list[int]] = {id(optimizer): []}
    pending: list[tuple[str, object]] = [("", optimizer)]
    # Breadth first: the shortest path names an optimizer.
    for path, each in pending:
        if isinstance(each, Optimizer):
            found[path] = each
        for inner_path, inner in _held(path, each):
            if id(inner) not in holders_of:
                pending.append((inner_path, inner))
            holders_of.setdefault(id(inner), []).append(id(each))
    # From the optimizers back to all that leads to them.
    holders = list(map(id, found.values()))
    for each in holders:
        holders += set(holders_of[each]) - set(holders)
    return found, set(holders)


def _held(path: str, value: object) -> list[tuple[str, object]]:
    """The values in a value, by path."""
    match value:
        case list() | tuple():
            return [(f"{path}[{at}]", each) for at, each in enumerate(value)]
        case dict():
            names = (key if isinstance(key, str) else at for at, key in enumerate(value))
            return [(f"{path}[{n}]", e) for n, e in zip(names, value.values(), strict=True)]
        case types.MethodType():
            return [(path, value.__self__)]
    if not _is_searched(value):
        return []
    left_out = _OWN if isinstance(value, Optimizer) else ()
    items = [(key, each) for key, each in vars(value).items() if key not in left_out]
    return [(f"{path}.{key}".removeprefix("."), each) for key, each in items]


def _is_searched(value: object) -> bool:
    """True for optimizers, and for objects of user code."""
    if isinstance(value, Optimizer):
        return True
    is_ours = type(value).__module__.partition(".")[0] in _LIBRARIES
    return hasattr(value, "__dict__") and not isinstance(value, _OPAQUE) and not is_ours
