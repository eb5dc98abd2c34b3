"""Shard gradients: `parameter.grad` from `session.backward` to the end of the shard.

A shard's gradient is a part of the step's. Clipped or changed part by part, the sum would depend on
the number of shards, so `parameter.grad` is a stand-in that can only be read. It detects writes by
the operators that PyTorch dispatches, so no pass over a gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import getrefcount
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from holdfast.errors import JobError

_CLEARING: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})
"""Operators of `zero_grad(set_to_none=False)`."""
_OWN: Final = 3
"""References to a stand-in that user code does not hold: of a list, a name and an argument."""


class ShardGradients:
    """The gradients of one worker's parameters, as user code sees them.

    Args:
        parameters: The trained parameters by name.
        optimizers: Their optimizers.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], optimizers: Iterable[Optimizer]
    ) -> None:
        self._parameters = parameters
        self._all = list(parameters.values())
        self._made: list[_StandIn | None] = [None] * len(parameters)
        self._shown: list[_StandIn | None] = []
        self._refused: list[str] = []
        owners = {
            id(p): at
            for at, o in enumerate(optimizers)
            for g in o.param_groups
            for p in g["params"]
        }
        self._groups: dict[int | None, list[int]] = {}
        for at, parameter in enumerate(self._all):
            self._groups.setdefault(owners.get(id(parameter)), []).append(at)

    def check_none(self) -> None:
        """Raises: JobError: A parameter has a gradient that is not from `session.backward`."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                raise JobError(
                    f"{name} has a gradient that session.backward has not computed; call "
                    "session.backward(loss) instead of loss.backward(), and change gradients in "
                    "a function given to session.on_gradients"
                )

    def show(self, gradients: Iterable[torch.Tensor | None]) -> None:
        """Let user code read the gradient of each parameter; None if it has none."""
        for at, (name, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            made = None
            if gradient is not None:
                made = self._made[at]
                kind = (gradient.shape, gradient.stride(), gradient.dtype)
                if made is None or made.kind != kind:
                    self._made[at] = made = _StandIn(gradient, name, self._refused, cleared=False)
                made.held = gradient
                made.cleared = False
            self._shown.append(made)
            self._all[at].grad = made

    def end(self) -> None:
        """Forget the gradients that are shown.

        Raises:
            JobError: User code has replaced some, or cleared only some of an optimizer's.
        """
        if self._refused:  # user code has caught the error
            raise _changed(self._refused[0])
        cleared = {
            at
            for at, (shown, parameter) in enumerate(zip(self._shown, self._all, strict=False))
            if parameter.grad is not shown or (shown is not None and shown.cleared)
        }
        for at in cleared:
            if self._all[at].grad is not None and self._all[at].grad is not self._shown[at]:
                raise _changed(list(self._parameters)[at])
        for group in self._groups.values() if cleared else ():
            own = cleared.intersection(group)
            # All of an optimizer's: that is `zero_grad()`, which plain loops call after the step.
            if own and len(own) < sum(self._shown[at] is not None for at in group):
                raise _changed(list(self._parameters)[min(own)])
        self.forget()

    def forget(self) -> None:
        """Leave no gradient in any parameter."""
        for parameter in self._all:
            parameter.grad = None
        self._refused.clear()
        if not self._shown:
            return
        self._shown = []
        for at in range(len(self._made)):
            made = self._made[at]
            # It stands for another gradient next, unless user code or a graph of autograd has it.
            if made is not None and getrefcount(made) == _OWN and made._use_count() == 1:
                del made.held
            else:
                self._made[at] = None


def _on_a_copy(method: str) -> Callable[..., Any]:
    return lambda self, *args, **keys: getattr(torch.clone(self), method)(*args, **keys)


class _StandIn(torch.Tensor):
    """A gradient, or a view of one, that user code can read and not change.

    Attributes:
        held: The values.
        of: The parameter's name.
        refused: Takes the name if user code tries to change it.
        cleared: True if user code has set it to zero; None for a view.
        kind: Its shape, strides and dtype.
    """

    held: torch.Tensor
    of: str
    refused: list[str]
    cleared: bool | None
    kind: tuple[torch.Size, tuple[int, ...], torch.dtype]
    _use_count: Callable[[], int]
    __torch_function__: Any = torch._C._disabled_torch_function_impl
    # PyTorch refuses these for a subclass.
    numpy = _on_a_copy("numpy")
    tolist = _on_a_copy("tolist")
    __deepcopy__ = _on_a_copy("__deepcopy__")
    __reduce_ex__ = _on_a_copy("__reduce_ex__")

    @staticmethod
    def __new__(
        cls, held: torch.Tensor, of: str, refused: list[str], *, cleared: bool | None
    ) -> _StandIn:
        made: _StandIn = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device
        )
        made.held = held
        made.of = of
        made.refused = refused
        made.cleared = cleared
        made.kind = (held.shape, held.stride(), held.dtype)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's type lacks the class
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        schema = func._schema
        given = dict(zip((each.name for each in schema.arguments), args, strict=False))
        given |= kwargs or {}
        written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        targets = [each for name in written for each in tree_leaves(given.get(name))]
        for target in (each for each in targets if isinstance(each, cls)):
            if schema.name not in _CLEARING or target.cleared is None:
                target.refused.append(target.of)
                raise _changed(target.of)
            target.cleared = True
            target.held = torch.zeros_like(target.held)
        own = [each for each in tree_leaves(given) if isinstance(each, cls)]
        plain = tree_map_only(cls, lambda stand_in: stand_in.held, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        # A view shares memory with the gradient, so it cannot be changed either.
        if not written and any(each.alias_info for each in schema.returns):
            of, refused = own[0].of, own[0].refused
            return tree_map_only(
                torch.Tensor, lambda view: cls(view, of, refused, cleared=None), result
            )
        return result

    @property
    def data(self) -> _StandIn:
        return self

    @data.setter
    def data(self, data: torch.Tensor) -> None:
        if data is not self:  # as `model.cpu()` sets it
            raise _changed(self.of)


def _changed(name: str) -> JobError:
    return JobError(
        f"the gradient of {name} was changed after session.backward, where it is one shard's part "
        "of the step's gradient; change the whole one in a function given to session.on_gradients, "
        "or set clip_norm to clip it"
    )
