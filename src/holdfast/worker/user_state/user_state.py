"""User state: what user code keeps in PyTorch's objects, apart from the tensors of a replica.

It consists of the options of parameter groups (such as the learning rate), what optimizers keep
besides tensors, objects registered with the session (schedulers, a GradScaler), the extra state of
modules (`get_extra_state`), which parameters are frozen, and which modules are in evaluation mode.
It changes between two steps only, in the optimizer's step and in `session.on_commit`: a worker
without a shard does not run the loop, and one that takes over a shard runs it from the start. So it
is captured after every commit, compared before the next one, and part of a state transfer.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from holdfast.arena.json_values import ValueVersion, decode, encode, in_place, is_users_object
from holdfast.arena.nested_optimizers import all_of, groups_of, parameters_of, states_of
from holdfast.arena.replica import KEPT, Trained
from holdfast.arena.state_dicts import THE_MODEL, extra_entries, load_extra_entries, plain_name
from holdfast.checkpoint.manifest import FORKED
from holdfast.errors import JobError
from holdfast.worker.user_state.module_tracker import ModuleTracker

STREAM: Final = "stream"
SCHEDULE: Final = "schedule"
"""Names of what `UserState.follow` adds."""
_DIGEST_BYTES: Final = 7
_NAMED: Final = 200
"""Characters of a value that a message shows."""


@runtime_checkable
class Stateful(Protocol):
    """The protocol of PyTorch's schedulers and scalers."""

    def state_dict(self) -> dict[str, Any]:
        """All of its state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the state of another."""


class UserState:
    """Captures and restores the user state of one worker.

    Args:
        trained: The model, its optimizer, and registered modules.
        registered: Objects that `session.register` was given, by name; tensors of modules are in
            the replica.

    Attributes:
        module_changes: Tracks what user code changes in modules apart from their tensors.
    """

    def __init__(self, trained: Trained, registered: Mapping[str, object]) -> None:
        self._optimizers = all_of(trained.optimizers)
        self._values = OptimizerValues(trained.optimizers, trained.model_parameters())
        self._kept = {
            name: each for name, each in registered.items() if not isinstance(each, nn.Module)
        }
        kept_modules = {KEPT + name: module for name, module in trained.kept.items()}
        roots = {"": trained.model, **kept_modules}
        self.module_changes = ModuleTracker(roots)
        self._with_extra_state = {
            name: module
            for name, module in {THE_MODEL: trained.model, **kept_modules}.items()
            if extra_entries(module)
        }
        self._followed: dict[str, Stateful] = {}
        self._not_saved: dict[tuple[int, str], ValueVersion] = {}
        self._groups = [list(map(id, group["params"])) for group in self._param_groups]
        self._modules = {
            plain_name(n): m for at, root in roots.items() for n, m in root.named_modules(prefix=at)
        }
        self._trained = trained.parameters()
        own = trained.model_parameters().items()
        self._frozen = {name: p for name, p in own if name not in self._trained}
        self._bases = dict(trained.bases)

    def follow(self, name: str, followed: Stateful) -> None:
        """Make an object part of the user state that exists only since the loop has begun.

        A state that has it is restored in full when the loop begins.
        """
        self._followed[name] = followed

    @property
    def _param_groups(self) -> list[dict[str, Any]]:
        return groups_of(*self._optimizers)

    def capture(self, known: object = None) -> dict[str, Any]:
        """The state as JSON data.

        Args:
            known: Argument of `OptimizerValues.capture`.

        Raises:
            JobError: Some of it cannot be saved, or the set of trained parameters has changed.
        """
        self._check_parameters()
        groups = self._param_groups
        return {
            "groups": [
                {key: encode(g[key], f"{key} of parameter group {at}") for key in g.keys() - _OWN}
                for at, g in enumerate(groups)
            ],
            "optimizers": [self._attributes_of(each) for each in self._optimizers],
            "optimizer_values": self._values.capture(known),
            "kept": {
                n: encode(_stateful(n, each).state_dict(), n) for n, each in self._kept.items()
            },
            "frozen": [name for name, p in self._trained.items() if not p.requires_grad],
            "attributes": dict(self.module_changes.attributes),
            "bases": self._bases,
            "extra_state": {
                name: {
                    key: encode(value, f"{key} in the state dict of {name}")
                    for key, value in extra_entries(module).items()
                }
                for name, module in self._with_extra_state.items()
            },
            "evaluating": [name for name, module in self._modules.items() if not module.training],
            "followed": {
                name: encode(each.state_dict(), name) for name, each in self._followed.items()
            },
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take a state that `capture` gave.

        Raises:
            JobError: It belongs to other parameter groups or other registered objects.
        """
        if (bases := saved.get("bases", {})) != self._bases:
            raise JobError(
                f"the run was trained on the base {_described(bases)}, not on "
                f"{_described(self._bases)}: its adapters fit no other; use the same weights"
            )
        groups = self._param_groups
        if len(saved["groups"]) != len(groups) or saved["kept"].keys() != self._kept.keys():
            raise JobError(
                f"the run has {len(saved['groups'])} parameter groups and registered "
                f"{sorted(saved['kept'])}; this worker has {len(groups)} and {sorted(self._kept)}: "
                "build the same ones in every worker, before session.shards"
            )
        # All checks have passed, and nothing was changed before them.
        for name, each in self._kept.items():
            _stateful(name, each).load_state_dict(decode(saved["kept"][name]))
        for name, each in self._followed.items():
            if name in saved["followed"]:
                each.load_state_dict(decode(saved["followed"][name]))
        for optimizer, attributes in zip(self._optimizers, saved["optimizers"], strict=True):
            vars(optimizer).update(
                (key, in_place(vars(optimizer).get(key), value))
                for key, value in decode(attributes).items()
                if not hasattr(type(optimizer), key)
            )
        # A fork has the options of its own job.
        stored = [] if FORKED in saved else zip(groups, saved["groups"], strict=True)
        for group, options in stored:
            # A tensor of an option, such as a learning rate, stays the same object: schedulers hold
            # it.
            _replace(group, decode(options))
        self._values.restore(saved.get("optimizer_values", {}))
        # Names of earlier versions have the parts that torch.compile adds.
        frozen = set(map(plain_name, saved["frozen"]))
        evaluating = set(map(plain_name, saved["evaluating"]))
        for name, parameter in self._trained.items():
            parameter.requires_grad_(name not in frozen)
        self.module_changes.restore(saved.get("attributes", {}))
        for name, entries in saved.get("extra_state", {}).items():
            load_extra_entries(self._with_extra_state[name], decode(entries))
        for name, module in self._modules.items():
            module.training = name not in evaluating

    @contextmanager
    def modes_kept(self) -> Iterator[None]:
        """Restore at the end which modules are in training mode: some may have been frozen."""
        modes = [(module, module.training) for module in self._modules.values()]
        try:
            yield
        finally:
            for module, was_training in modes:
                module.training = was_training

    def _attributes_of(self, optimizer: Optimizer) -> dict[str, Any]:
        """An optimizer's own attributes, as JSON data.

        Raises:
            JobError: Some of it has changed and cannot be saved.
        """
        attributes = {}
        elsewhere = [each for o in self._optimizers for each in (o.state, o.param_groups)]
        of_torch = type(optimizer).__module__.startswith("torch.")
        for key, value in vars(optimizer).items():
            if any(value is each for each in elsewhere):
                continue
            own = key not in _OF_EVERY_OPTIMIZER and not (of_torch and key.startswith("_"))
            is_followed = isinstance(value, _FOLLOWED) or is_users_object(value)
            if isinstance(value, int | float) or (own and is_followed):
                try:
                    attributes[key] = encode(value, f"{key} of the optimizer")
                except JobError:
                    # It cannot be saved, which matters only once it changes.
                    now = ValueVersion(value)
                    known = (id(optimizer), key)
                    if self._not_saved.setdefault(known, now) != now:
                        raise
        return attributes

    def _check_parameters(self) -> None:
        """Raises: JobError: the set of trained parameters has changed."""
        thawed = [name for name, parameter in self._frozen.items() if parameter.requires_grad]
        groups = [list(map(id, group["params"])) for group in self._param_groups]
        if not thawed and groups == self._groups:
            return
        what = (
            f"parameter {thawed[0]} began to require a gradient"
            if thawed
            else ("the optimizer's parameter groups changed")
        )
        raise JobError(
            f"{what} after training had begun, so no other worker would have its gradient; give "
            "it to the optimizer from the start, frozen: "
            "lambda model: torch.optim.SGD(model.parameters(), …)"
        )

    def check_all_known(self) -> None:
        """Raises: JobError: there is a scheduler for the optimizer or an average that is not
        registered, or an optimizer of trained parameters whose state is not followed.
        """
        known = [*self._kept.values(), *self._followed.values()]
        kept = set(map(id, [*_held_by(known), *self._optimizers, *self._modules.values()]))
        gc.collect()
        for each in gc.get_objects():  # few: what was there before this process was forked is not
            for kind, what in _REGISTERED.items():
                if issubclass(type(each), kind) and id(each) not in kept and self._is_ours(each):
                    raise JobError(f"{type(each).__name__}, {what}")

    def _is_ours(self, each: object) -> bool:
        """True if an object schedules, steps or averages what is trained here."""
        if isinstance(each, LRScheduler):
            return any(each.optimizer is own for own in self._optimizers)
        trained = set(self._trained.values())
        return not isinstance(each, Optimizer) or not trained.isdisjoint(parameters_of(each))


_LOST: Final = "is not part of the state, and what it keeps would be lost with the worker"
_REGISTERED: Final[Mapping[type, str]] = MappingProxyType(
    {
        LRScheduler: f"scheduler for the optimizer, {_LOST}: let the schedule of session.attach "
        "return it, or give it to session.register and step it in session.on_commit",
        Optimizer: f"optimizer of the model's parameters, {_LOST}: make it an attribute of the one "
        "that session.attach gets, or give it to session.register",
        AveragedModel: f"average, {_LOST}: give it to session.register",
    }
)
"""Objects that must be registered, and what errors say of others."""
_OWN: Final = frozenset({"params"})
_OF_EVERY_OPTIMIZER: Final = frozenset(vars(Optimizer([torch.zeros(1)], {})))
_FOLLOWED: Final = (str, list, tuple, dict, torch.Tensor, np.generic)


def _described(bases: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({digest[:12]})" for name, digest in bases.items()) or "none"


def _held_by(pending: list[object]) -> list[object]:
    """The schedulers and optimizers among objects and their attributes."""
    found = list[object]()
    seen = set[int]()
    while pending:
        each = pending.pop()
        if isinstance(each, LRScheduler | Optimizer):
            found.append(each)
        if id(each) in seen or isinstance(each, nn.Module | Optimizer | torch.Tensor):
            continue
        seen.add(id(each))
        if isinstance(each, list | tuple):
            pending += each
        else:
            pending += (each if isinstance(each, dict) else getattr(each, "__dict__", {})).values()
    return found


def digest(*parts: object) -> int:
    """A 56-bit digest, the same in all processes for equal states."""
    text = json.dumps(parts, sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest())


def difference(left: Any, right: Any, name: str = "") -> str:
    """The first difference of two states, in words; empty if they are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted(left.keys() | right.keys())
        parts = (
            (f"{name}.{key}" if name else str(key), left.get(key), right.get(key)) for key in keys
        )
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        parts = ((f"{name}[{at}]", *pair) for at, pair in enumerate(zip(left, right, strict=True)))
    else:
        return "" if left == right else f"{name} ({left!r:.{_NAMED}} and {right!r:.{_NAMED}})"
    differences = (difference(mine, theirs, part) for part, mine, theirs in parts)
    return next(filter(None, differences), "")


def _replace(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    for key in group.keys() - options.keys() - _OWN:
        del group[key]
    for key, value in ((key, options[key]) for key in options.keys() - _OWN):
        if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
            group[key].copy_(value)  # schedulers and compiled steps hold the tensor itself
        else:
            group[key] = in_place(group.get(key), value)


def _stateful(name: str, kept: object) -> Stateful:
    if not isinstance(kept, Stateful):
        raise JobError(
            f"session.register({name!r}, …) was given a {type(kept).__name__}, which has no "
            "state_dict and load_state_dict"
        )
    return kept


class OptimizerValues:
    """The values of the optimizers of one worker, apart from tensors of parameters; such as a count
    of steps in a number.

    Args:
        optimizers: The optimizers.
        parameters: Parameters that they may hold, by name.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._known: object = None
        self._captured: dict[str, Any] | None = None
        # Their names are tuples, since user code may use any string as a key.
        self._names = {id(parameter): (name,) for name, parameter in parameters.items()}

    def capture(self, known: object) -> dict[str, Any]:
        """The values as JSON data, by the state that has them; without states that have none.

        Args:
            known: Another object whenever an optimizer keeps another one; None if that is not
                known.

        Raises:
            JobError: Some of it cannot be saved.
        """
        # Where there are none, one can only come with another object in a state.
        if known is None or known is not self._known or self._captured != {}:
            self._captured = None
            self._known = known
            self._captured = self._read()
        return self._captured

    def _read(self) -> dict[str, Any]:
        captured = dict[str, Any]()
        for place, state in self._states():
            values = dict[Any, Any]()
            for key, value in state.items():
                name = self._names.get(id(key))
                if name is not None and isinstance(value, dict):
                    if plain := _without_tensors(value):
                        values[name] = plain
                    continue
                if isinstance(key, torch.Tensor):
                    raise JobError(
                        f"{place} keeps a {type(value).__name__} for a tensor of shape "
                        f"{tuple(key.shape)}; keep dictionaries for parameters, and the rest under "
                        "a name, such as optimizer.state['mean']"
                    )
                values[key] = value
            if values:
                captured[place] = encode(values, f"state of {place}")
        return captured

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Take values that `capture` gave, in place of all present ones."""
        for place, state in self._states():
            for key in list(state):
                if id(key) in self._names:
                    for name in _without_tensors(state[key]):
                        del state[key][name]
                else:
                    del state[key]
            for key, value in decode(captured.get(place, {})).items():
                if isinstance(key, tuple) and key[0] in self._parameters:
                    state.setdefault(self._parameters[key[0]], {}).update(value)
                else:
                    state[key] = value

    def _states(self) -> Iterator[tuple[str, dict[Any, Any]]]:
        for number, optimizer in enumerate(self._optimizers):
            for path, state in states_of(optimizer):
                yield f"optimizer {number}{path and '.'}{path}", state


def _without_tensors(values: dict[Any, Any]) -> dict[Any, Any]:
    return {key: each for key, each in values.items() if not isinstance(each, torch.Tensor)}
