"""Shard gradients: `parameter.grad` from `session.backward` to the end of the shard.

    backward ─▶ show: a stand-in for each gradient ─▶ (user code) ─▶ end ─▶ None

A shard's gradient is a part of the step's. Clipped or changed part by part, the sum would depend on
the number of shards, so a stand-in can be read only. It detects writes by the operators that
PyTorch dispatches, so no pass over a gradient is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from holdfast.errors import JobError

_CLEARING: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})
"""Operators of `zero_grad(set_to_none=False)`."""


class ShardGradients:
    """The stand-ins of one worker's parameters.

    Args:
        names, parameters: The trained parameters.
        optimizers: Their optimizers, which clear all of their gradients or none.
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        optimizers: Iterable[Optimizer],
    ) -> None:
        self._names = names
        self._parameters = parameters
        self._shown: list[_StandIn | None] = []
        self._zeroed: set[int] = set()
        held = [{id(p) for g in each.param_groups for p in g["params"]} for each in optimizers]
        self._groups = [
            [place for place, p in enumerate(parameters) if id(p) in own] for own in held
        ]

    def show(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Let user code read the gradient of each parameter; None if it has none."""
        self._shown = [
            None if gradient is None else _StandIn(gradient, name, self._zeroed)
            for name, gradient in zip(self._names, gradients, strict=True)
        ]
        for parameter, shown in zip(self._parameters, self._shown, strict=True):
            parameter.grad = shown

    def end(self) -> None:
        """Forget the gradients that are shown.

        Raises:
            JobError: User code has replaced some, or cleared only some of an optimizer's.
        """
        found = [parameter.grad for parameter in self._parameters]
        if self._zeroed or any(a is not b for a, b in zip(found, self._shown, strict=True)):
            self._check(found)
        self.forget()

    def forget(self) -> None:
        """Leave no gradient in any parameter."""
        for parameter in self._parameters:
            parameter.grad = None
        self._shown = []
        self._zeroed.clear()

    def _check(self, found: Sequence[torch.Tensor | None]) -> None:
        cleared = [
            shown is not None and (gradient is None or id(shown) in self._zeroed)
            for gradient, shown in zip(found, self._shown, strict=True)
        ]
        for place, (gradient, shown) in enumerate(zip(found, self._shown, strict=True)):
            if gradient is not shown and not cleared[place]:
                raise _changed(self._names[place])
        # All of an optimizer's: that is `zero_grad()`, which plain loops call after the step.
        for group in self._groups:
            odd = [place for place in group if cleared[place]]
            if odd and len(odd) < sum(self._shown[place] is not None for place in group):
                raise _changed(self._names[odd[0]])


class _StandIn(torch.Tensor):
    """A gradient, or a view of one, that user code can read and not change.

    Attributes:
        held: The values.
        of: The parameter's name.
        zeroed: Takes the id of each stand-in that is set to zero; None for a view.
    """

    held: torch.Tensor
    of: str
    zeroed: set[int] | None
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor, of: str, zeroed: set[int] | None) -> _StandIn:
        made: _StandIn = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device
        )
        made.held = held
        made.of = of
        made.zeroed = zeroed
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's type lacks the class
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        schema = func._schema
        given = dict(zip((each.name for each in schema.arguments), args, strict=False))
        given |= kwargs or {}
        written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        targets = [
            target
            for name in written
            for target in tree_leaves(given.get(name))
            if isinstance(target, cls)
        ]
        if targets:
            return cls._write(schema.name, targets)
        source = next(each for each in tree_leaves(given) if isinstance(each, cls))
        plain_args, plain_kwargs = tree_map_only(cls, lambda s: s.held, (args, kwargs or {}))
        result = func(*plain_args, **plain_kwargs)
        # A view shares memory with the gradient, so it cannot be changed either.
        if not written and any(each.alias_info for each in schema.returns):
            return tree_map_only(torch.Tensor, lambda view: cls(view, source.of, None), result)
        return result

    @staticmethod
    def _write(operator: str, targets: Sequence[_StandIn]) -> _StandIn | None:
        """Take note of gradients that are set to zero; refuse all else.

        Raises:
            JobError: They are changed in another way.
        """
        for target in targets:
            if operator not in _CLEARING or target.zeroed is None:
                raise _changed(target.of)
            target.zeroed.add(id(target))
        return targets[0] if operator == "aten::zero_" else None

    @property
    def data(self) -> _StandIn:
        return self

    @data.setter
    def data(self, _: torch.Tensor) -> None:
        raise _changed(self.of)

    # What PyTorch does not do for a subclass, on a copy.

    def numpy(self, *, force: bool = False) -> Any:
        return self._copy().numpy(force=force)

    def tolist(self) -> Any:
        return self._copy().tolist()

    def __deepcopy__(self, memo: object) -> torch.Tensor:
        return self._copy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._copy().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def _copy(self) -> torch.Tensor:
        return torch.clone(self)


def _changed(name: str) -> JobError:
    """The error for code that changes the gradient of a parameter."""
    return JobError(
        f"the gradient of {name} was changed after session.backward, where it is one shard's part "
        "of the step's gradient; change the whole one in a function given to session.on_gradients, "
        "or set clip_norm to clip it"
    )
