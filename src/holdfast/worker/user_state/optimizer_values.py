"""Optimizer values: what optimizers keep in their state apart from tensors of parameters, such as a
count of steps in a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.arena.json_values import decode, encode
from holdfast.arena.nested_optimizers import states_of
from holdfast.errors import JobError


class OptimizerValues:
    """The values of the optimizers of one worker.

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
