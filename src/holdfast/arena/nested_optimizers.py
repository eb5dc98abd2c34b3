"""Nested optimizers: those that an optimizer holds, such as one for matrices and one for the rest.

They are found in attributes, lists, tuples, dictionaries, bound methods and objects of user code.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_OPAQUE: Final = (nn.Module, torch.Tensor, LRScheduler, type, types.FunctionType, types.ModuleType)
"""Objects that are not searched, as are those of some packages."""
_PACKAGES: Final = frozenset({"torch", "holdfast", "logging"})
_OWN: Final = frozenset({"state", "param_groups", "defaults"})
_COLLECTIONS: Final = frozenset({dict, OrderedDict, list, tuple})
_LEAVES: Final = frozenset({type(None), bool, int, float, str, types.FunctionType})
"""Classes of values that hold nothing, which are the most."""


def nested(optimizer: Optimizer) -> dict[str, Optimizer]:
    """An optimizer, whose path is empty, and those that it holds, each once, by path."""
    found: dict[str, Optimizer] = {}
    seen = set[int]()
    pending: list[tuple[str, object]] = [("", optimizer)]
    # Breadth first: the shortest path names an optimizer.
    for path, each in pending:
        if id(each) not in seen:
            seen.add(id(each))
            pending += _held(path, each)
            if isinstance(each, Optimizer):
                found[path] = each
    return found


def all_of(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Optimizers and those that they hold, each once."""
    return list({id(n): n for each in optimizers for n in nested(each).values()}.values())


def groups_of(*optimizers: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups of optimizers and of those that they hold, each once."""
    groups = (group for each in all_of(optimizers) for group in each.param_groups)
    return list({id(group): group for group in groups}.values())


def parameters_of(*optimizers: Optimizer) -> list[torch.Tensor]:
    """The parameters of optimizers and of those that they hold, each once."""
    return list(dict.fromkeys(p for group in groups_of(*optimizers) for p in group["params"]))


def states_of(optimizer: Optimizer) -> Iterator[tuple[str, dict[Any, Any]]]:
    """The state of an optimizer and of those that it holds, each once, by path."""
    seen = set[int]()
    for path, each in nested(optimizer).items():
        if id(each.state) not in seen:
            seen.add(id(each.state))
            yield path, each.state


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
        case Optimizer():
            attributes = {
                key: each
                for key, each in vars(value).items()
                if key not in _OWN
                and type(each) not in _LEAVES
                and (type(each) not in _COLLECTIONS or each)
            }
        case _ if isinstance(value, _OPAQUE) or type(value).__module__.split(".")[0] in _PACKAGES:
            return []
        case _:
            attributes = getattr(value, "__dict__", {})
    return [(f"{path}.{key}".removeprefix("."), each) for key, each in attributes.items()]
