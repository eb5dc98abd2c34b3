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
_OWN: Final = 2
"""References to a stand-in that user code does not hold: of a name and of an argument."""
_USES: Final[Callable[[torch.Tensor], int]] = getattr(torch.Tensor, "_use_count", lambda _: 0)
"""References of C++; without that count, no stand-in is used again."""


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
        self._shown: dict[str, _StandIn] = {}
        self._spare: dict[str, _StandIn] = {}
        self._refused: list[str] = []
        owners = {
            id(p): at
            for at, o in enumerate(optimizers)
            for g in o.param_groups
            for p in g["params"]
        }
        self._groups: dict[int | None, list[str]] = {}
        for name, parameter in parameters.items():
            self._groups.setdefault(owners.get(id(parameter)), []).append(name)

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
        for (name, parameter), gradient in zip(self._parameters.items(), gradients, strict=True):
            made = None
            if gradient is not None:
                # To make one takes longer than all the rest, so they are used again.
                made = self._spare.pop(name, None)
                if made is None or made.kind != (gradient.shape, gradient.stride(), gradient.dtype):
                    made = _StandIn(gradient, name, self._refused, cleared=False)
                made.held = gradient
                made.cleared = False
                self._shown[name] = made
            parameter.grad = made

    def end(self) -> None:
        """Forget the gradients that are shown.

        Raises:
            JobError: User code has replaced some, or cleared only some of an optimizer's.
        """
        if self._refused:  # user code has caught the error
            raise _changed(self._refused[0])
        own = self._parameters.items()
        touched = any(p.grad is not self._shown.get(name) for name, p in own)
        touched |= any(shown.cleared for shown in self._shown.values())
        for group in self._groups.values() if touched else ():
            cleared = [name for name in group if self._is_cleared(name)]
            # All of an optimizer's: that is `zero_grad()`, which plain loops call after the step.
            if cleared and len(cleared) < sum(name in self._shown for name in group):
                raise _changed(cleared[0])
        self.forget()

    def forget(self) -> None:
        """Leave no gradient in any parameter."""
        for parameter in self._parameters.values():
            parameter.grad = None
        self._refused.clear()
        while self._shown:
            name, shown = self._shown.popitem()
            if getrefcount(shown) == _OWN and _USES(shown) == 1:
                del shown.held
                self._spare[name] = shown
            else:  # user code or a graph of autograd has it, and later shards may be added to it
                shown.held = shown.held.clone()

    def _is_cleared(self, name: str) -> bool:
        shown = self._shown.get(name)
        gradient = self._parameters[name].grad
        if gradient is not None and gradient is not shown:
            raise _changed(name)
        return shown is not None and (gradient is None or bool(shown.cleared))


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
