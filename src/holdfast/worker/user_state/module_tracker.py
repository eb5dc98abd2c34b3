"""Module tracker: tracks attributes that user code changes in modules in `session.on_commit`.

Attributes that are numbers, strings or tensors, or lists, tuples and dictionaries of these, such as
the `p` of a dropout, become part of the state. Changes that cannot be transferred to another
worker, such as a new layer, a hook or another attribute of an object, are refused. What modules
change in themselves while they compute is ignored: many keep a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from holdfast.arena.json_values import ValueVersion, decode, encode, in_place
from holdfast.arena.state_dicts import plain_name
from holdfast.errors import JobError

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module()))

Place = tuple[str, str]
"""The name of a module, and of an attribute of it."""


class ModuleTracker:
    """Tracks attributes that user code changes in modules.

    Args:
        modules: The model and kept modules, by name.

    Attributes:
        attributes: The values of changed attributes, as JSON data, by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._roots = modules
        self.attributes: dict[str, Any] = {}

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Track what is changed within the context.

        Raises:
            JobError: A change cannot be transferred to another worker.
        """
        parts = self._parts()
        before = self._snapshots()
        yield
        self._check_same(parts, self._parts())
        for place, snapshot in self._snapshots().items():
            if place not in before or before[place] != snapshot:
                name = ".".join(filter(None, place))
                try:
                    self.attributes[name] = encode(snapshot.value, f"attribute {name}")
                except JobError:
                    # Its extra state may have it.
                    if not _has_extra_state(dict(self._modules())[place[0]]):
                        raise

    def restore(self, attributes: Mapping[str, Any]) -> None:
        """Set the `attributes` that another worker or an earlier attempt has changed."""
        self.attributes = dict(attributes)
        modules = dict(self._modules())
        for name, plain in attributes.items():
            module, _, key = plain_name(name).rpartition(".")
            value = decode(plain)
            old = getattr(modules[module], key, None)
            if isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor):
                value = value.to(old.device)
            setattr(modules[module], key, in_place(old, value))

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for name, root in self._roots.items():
            for at, module in root.named_modules(prefix=name):
                yield plain_name(at), module

    def _parts(self) -> dict[str, int]:
        """The parts of the modules: submodules and parameters as objects, buffers, hooks."""
        parts: dict[str, int] = {}
        for name, module in self._modules():
            parts[f"module {name}"] = id(module)
            parts |= {f"parameter {name}.{k}": id(p) for k, p in module._parameters.items()}
            parts |= {f"buffer {name}.{k}": b is None for k, b in module._buffers.items()}
            parts |= {f"{hooks[1:]} of module {name}": len(vars(module)[hooks]) for hooks in _HOOKS}
        return parts

    def _check_same(self, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        """Raises: JobError: the parts differ."""
        for name in [*before, *now]:
            if before.get(name) != now.get(name):
                raise JobError(
                    f"{name} was added, removed or replaced in session.on_commit; a replacement "
                    "worker would not have the change; build it in the model's factory, and change "
                    "its values in place"
                )

    def _snapshots(self) -> dict[Place, ValueVersion]:
        return {
            (name, key): ValueVersion(value)
            for name, module in self._modules()
            for key, value in vars(module).items()
            if key not in _OF_EVERY_MODULE and not (key.startswith("_") and _is_torchs_own(module))
        }


def _has_extra_state(module: nn.Module) -> bool:
    kind = type(module)
    saves_more = kind._save_to_state_dict is not nn.Module._save_to_state_dict
    return saves_more or kind.get_extra_state is not nn.Module.get_extra_state


def _is_torchs_own(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")
