"""Shard gradients: `parameter.grad` from `session.backward` to the end of the shard.

A shard's gradient is a part of the step's. Clipped or changed part by part, the sum would depend on
the number of shards, so `parameter.grad` is a stand-in that can only be read. It detects writes by
the operators that PyTorch dispatches, so no pass over a gradient is needed.

A stand-in takes longer to make than all the rest, so it shows the gradients of one shard after the
other, unless user code keeps it. What user code keeps gets a copy, since gradients are added to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from holdfast.errors import JobError

_CLEARING: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})
"""Operators of `zero_grad(set_to_none=False)`."""
_GRADIENT: Final = attrgetter("grad")
_PAIR: Final = [object()]
_OWN: Final = next(map(getrefcount, [*_PAIR]))
"""References to an object that two lists have, as `map` counts them."""
_USES: Final[Callable[[torch.Tensor], int]] = getattr(torch.Tensor, "_use_count", lambda _: 2)
"""References of C++; without that count, no stand-in is used again."""


class ShardGradients:
    """The gradients of one worker's parameters, as user code sees them.

    Args:
        parameters: The trained parameters by name.
        optimizers: Their optimizers.

    Attributes:
        values: Values that are shown, by parameter; empty outside of a shard.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], optimizers: Iterable[Optimizer]
    ) -> None:
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._stand_ins: list[_StandIn | None] = [None] * len(parameters)
        self._shown: list[_StandIn | None] = []
        self._layouts: list[tuple[int, ...] | None] = []
        self._cleared = set[int]()
        self._refused = list[int]()
        self._views = list[weakref.ref[_StandIn]]()
        self.values: list[torch.Tensor | None] = []
        owners = {
            id(p): at
            for at, o in enumerate(optimizers)
            for g in o.param_groups
            for p in g["params"]
        }
        groups: dict[int | None, list[int]] = {}
        for at, parameter in enumerate(self._parameters):
            groups.setdefault(owners.get(id(parameter)), []).append(at)
        self._groups = list(groups.values())

    def check_none(self) -> None:
        """Raises: JobError: A parameter has a gradient that is not from `session.backward`."""
        for name, gradient in zip(self._names, map(_GRADIENT, self._parameters), strict=True):
            if gradient is not None:
                raise JobError(
                    f"{name} has a gradient that session.backward has not computed; call "
                    "session.backward(loss) instead of loss.backward(), and change gradients in "
                    "a function given to session.on_gradients"
                )

    def show(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Let user code read the gradient of each parameter; None if it has none."""
        self.values = list(gradients)
        # Of one shard after the other, gradients have the same layouts, and stand-ins are kept.
        layouts = [None if each is None else each.stride() for each in gradients]
        if layouts != self._layouts:
            self._fit(layouts)
        for parameter, stand_in in zip(self._parameters, self._shown, strict=True):
            parameter.grad = stand_in

    def _fit(self, layouts: list[tuple[int, ...] | None]) -> None:
        """Have a stand-in of its layout for each gradient."""
        self._layouts = layouts
        for at, gradient in enumerate(self.values):
            previous = self._stand_ins[at]
            if gradient is not None and (
                previous is None or previous.stride() != gradient.stride()
            ):
                self._stand_ins[at] = _StandIn(self, at, gradient)
        pairs = zip(layouts, self._stand_ins, strict=True)
        self._shown = [None if layout is None else stand_in for layout, stand_in in pairs]

    def end(self) -> None:
        """Forget the gradients that are shown.

        Raises:
            JobError: User code has replaced some, or cleared only some of an optimizer's.
        """
        if self._refused:  # user code has caught the error
            raise self._changed(self._refused[0])
        if self._cleared or not all(map(is_, map(_GRADIENT, self._parameters), self._shown)):
            self._check_changes()
        self.forget()

    def forget(self) -> None:
        """Leave no gradient in any parameter."""
        for parameter in self._parameters:
            parameter.grad = None
        if self.values:
            self._leave_copies()
        self.values = []
        self._cleared.clear()
        self._refused.clear()

    def refuse(self, at: int) -> JobError:
        """Note that user code has tried to change a gradient; returns the error."""
        self._refused.append(at)
        return self._changed(at)

    def clear(self, at: int) -> None:
        """Show zeros from now on, for user code has set the gradient to zero."""
        self._cleared.add(at)
        shown = self.values[at]
        assert shown is not None, "a gradient that is not shown"
        self.values[at] = torch.zeros_like(shown)

    def note_view(self, view: _StandIn) -> None:
        """Note a view of what is shown."""
        self._views.append(weakref.ref(view))

    def _check_changes(self) -> None:
        for group in self._groups:
            cleared = [at for at in group if self._is_cleared(at)]
            # All of an optimizer's: that is `zero_grad()`, which plain loops call after the step.
            if cleared and len(cleared) < sum(self._shown[at] is not None for at in group):
                raise self._changed(cleared[0])

    def _is_cleared(self, at: int) -> bool:
        shown = self._shown[at]
        gradient = self._parameters[at].grad
        if gradient is not None and gradient is not shown:
            raise self._changed(at)
        return shown is not None and (gradient is None or at in self._cleared)

    def _leave_copies(self) -> None:
        """Give what user code or a graph of autograd has kept values of its own."""
        references = list(map(getrefcount, self._shown))
        for at, (count, each) in enumerate(zip(references, self._shown, strict=True)):
            shown = self.values[at]
            # More references than the lists here have: it may be read after the values change.
            if each is not None and shown is not None and (count > _OWN or _USES(each) > 1):
                each.own = shown.clone()
                self._stand_ins[at] = None
                self._layouts = []
        for view in (each() for each in self._views):
            if view is not None:
                view.own = view.held.clone()
        self._views.clear()

    def _changed(self, at: int) -> JobError:
        return JobError(
            f"the gradient of {self._names[at]} was changed after session.backward, where it is "
            "one shard's part of the step's gradient; change the whole one in a function given to "
            "session.on_gradients, or set clip_norm to clip it"
        )


def _on_a_copy(method: str) -> Callable[..., Any]:
    return lambda self, *args, **keys: getattr(torch.clone(self), method)(*args, **keys)


class _StandIn(torch.Tensor):
    """A gradient, or a view of one, that user code can read and not change.

    Attributes:
        of: The gradients that it is one of.
        at: Position of its parameter.
        own: Values of its own; None while it shows those of the current shard.
        is_view: True for a view.
    """

    of: ShardGradients
    at: int
    own: torch.Tensor | None
    is_view: bool
    __torch_function__: Any = torch._C._disabled_torch_function_impl
    # PyTorch refuses these for a subclass.
    numpy = _on_a_copy("numpy")
    tolist = _on_a_copy("tolist")
    __deepcopy__ = _on_a_copy("__deepcopy__")
    __reduce_ex__ = _on_a_copy("__reduce_ex__")

    @staticmethod
    def __new__(
        cls, of: ShardGradients, at: int, like: torch.Tensor, *, is_view: bool = False
    ) -> _StandIn:
        made: _StandIn = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        made.of = of
        made.at = at
        made.own = like if is_view else None
        made.is_view = is_view
        return made

    @property
    def held(self) -> torch.Tensor:
        """The values."""
        held = self.of.values[self.at] if self.own is None else self.own
        assert held is not None, "a gradient that is not shown"
        return held

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's type lacks the class
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # The schema says which arguments an operator writes to; no list of operators is needed.
        schema = func._schema
        arguments = dict(zip((each.name for each in schema.arguments), args, strict=False))
        arguments |= kwargs or {}
        written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        targets = [each for name in written for each in tree_leaves(arguments.get(name))]
        for target in (each for each in targets if isinstance(each, cls)):
            if schema.name not in _CLEARING or target.is_view:
                raise target.of.refuse(target.at)
            target.clear()
        stand_ins = [each for each in tree_leaves(arguments) if isinstance(each, cls)]
        plain = tree_map_only(cls, lambda stand_in: stand_in.held, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        # A view shares memory with the gradient, so it cannot be changed either.
        if not written and any(each.alias_info for each in schema.returns):
            return tree_map_only(torch.Tensor, stand_ins[0].view_of, result)
        return result

    def clear(self) -> None:
        """Be zero from now on."""
        if self.own is None:
            self.of.clear(self.at)
        else:
            self.own = torch.zeros_like(self.own)

    def view_of(self, values: torch.Tensor) -> _StandIn:
        """A view of this gradient, or a view of one, with these values."""
        view = _StandIn(self.of, self.at, values, is_view=True)
        self.of.note_view(view)
        return view

    @property
    def data(self) -> _StandIn:
        return self

    @data.setter
    def data(self, data: torch.Tensor) -> None:
        if data is not self:  # as `model.cpu()` sets it
            raise self.of.refuse(self.at)
