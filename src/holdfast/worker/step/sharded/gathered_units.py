"""Units: the parts of a model whose weights are gathered, used and freed together.

    forward    gather a unit's weights ─▶ compute ─▶ free them
    backward   gather them again ─▶ compute ─▶ free them, and hand on the gradient of all its rows

PyTorch's FSDP2 gathers and frees. What becomes of a gradient is decided elsewhere, so this replaces
what FSDP2 does after the backward pass of a unit. All that it uses of FSDP2's private parts is in
this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from holdfast.arena.state_dicts import plain_name
from holdfast.collectives.gradient_sets import Gradients

Collect = Callable[["Unit", Gradients], None]
"""Takes a unit and the gradients of all rows of its parameters, once for each backward pass."""

_LISTS = (nn.ModuleList, nn.Sequential)


class Unit:
    """Parameters that are gathered together.

    Args:
        module: The module that they are gathered for.
        group: FSDP2's part.
        names: The name of each of FSDP2's parameters in the model.

    Attributes:
        names: Names of the parameters, in the order of gradients.
        collect: Takes the gradients.
    """

    def __init__(
        self, module: nn.Module, group: FSDPParamGroup, names: Mapping[int, str], collect: Collect
    ) -> None:
        self._group = group
        self._params: Sequence[FSDPParam] = group.fsdp_params
        self.names = [names[id(each.sharded_param)] for each in self._params]
        self._collect = collect
        self._uses = 0
        self._is_open = False
        self._of_workers: Sequence[Sequence[torch.Tensor]] = ()
        self._before: Callable[[], object] = _do_nothing
        module.register_forward_pre_hook(self._count_use)
        module.register_forward_hook(self._free_unused)
        group.post_backward = self._post_backward  # type: ignore[method-assign]

    @property
    def leaves(self) -> Iterator[torch.Tensor]:
        """The parameters that autograd has seen: all rows, in memory while they are used."""
        return (p._unsharded_param for p in self._params if hasattr(p, "_unsharded_param"))

    def bind(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Gather from other memory from now on, which has the same values.

        Args:
            memory: The memory of each parameter's rows, padding included: uint8[n].
        """
        for name, param in zip(self.names, self._params, strict=True):
            if name in memory:
                flat = memory[name].view(param.sharded_param.dtype)
                size = param.sharded_size
                param._sharded_param_data = flat
                rows: Any = param.sharded_param
                rows._local_tensor = flat[: size.numel()].view(size)

    def read_from(
        self, memory: Mapping[str, Sequence[torch.Tensor]], before: Callable[[], object]
    ) -> None:
        """Gather by reading the memory of all workers from now on.

        Args:
            memory: The rows of each parameter on each worker, padding included: uint8[n].
            before: Called before each gather.
        """
        self._of_workers = [memory[name] for name in self.names]
        self._before = before
        # Of FSDP2's two calls, the first does all: there is nothing to wait for.
        self._group.unshard = self._read  # type: ignore[method-assign]
        self._group.wait_for_unshard = _do_nothing  # type: ignore[method-assign]

    @torch.no_grad()
    def _read(self, *_: object, **__: object) -> None:
        """Gather as FSDP2 does where there is one worker, which copies its own rows."""
        if self._group.is_unsharded:
            return
        self._before()
        for param, of_workers in zip(self._params, self._of_workers, strict=True):
            dtype = param.sharded_param.dtype
            rows = [each.view(dtype) for each in of_workers]
            number = self._group.mesh_info.mesh.size()
            most = max(map(len, rows), default=0)  # no worker has rows of an empty parameter
            param.init_all_gather_outputs([most], [dtype], number, param.device)
            param.alloc_all_gather_outputs()
            (gathered,) = param.all_gather_outputs
            with torch.autograd._unsafe_preserve_version_counter(gathered):  # type: ignore[attr-defined]
                if rows:
                    torch.cat(rows, out=gathered[: sum(map(len, rows))])
            param.init_unsharded_param()  # type: ignore[no-untyped-call]
        self._group._to_unsharded()  # type: ignore[no-untyped-call]

    def begin_shard(self) -> None:
        """Forget uses in an earlier shard, whose graph is never computed."""
        self._uses = 0
        self._is_open = False

    def end_backward(self) -> None:
        """Hand on the gradients, if some use of the unit had no part in the loss."""
        if self._is_open:
            self._hand_on()

    def free(self) -> None:
        """Free gathered weights: they are about to change."""
        self._uses = 0
        self._group.reshard()

    def _count_use(self, *_: object) -> None:
        # What activation checkpointing computes again in a backward pass is no further use.
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._uses += 1

    def _free_unused(self, *_: object) -> None:
        # FSDP2 keeps the weights of the whole model's unit for a backward pass.
        if not torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._group.reshard()

    def _post_backward(self, *_: object) -> None:
        """Free the weights; after the last use of the unit, hand on its gradients."""
        self._group._training_state = TrainingState.POST_BACKWARD
        self._group.reshard()
        self._uses -= 1
        self._is_open = self._uses > 0
        if not self._is_open:
            self._hand_on()

    def _hand_on(self) -> None:
        self._uses = 0
        self._is_open = False
        leaves = [getattr(each, "_unsharded_param", None) for each in self._params]
        gradients = [None if leaf is None else leaf.grad for leaf in leaves]
        for leaf in leaves:
            if leaf is not None:
                leaf.grad = None
        self._collect(self, gradients)


def _do_nothing() -> None:
    """Do nothing."""


def divide_units(
    model: nn.Module,
    mesh: DeviceMesh,
    gather_of: Callable[[int], AllGather],
    collect: Collect,
    least: int,
) -> list[Unit]:
    """Divide a model's parameters by rows over the workers of a mesh, in place.

    Args:
        model: The model. Its parameters become those of FSDP2.
        mesh: The workers, in one dimension.
        gather_of: Gives what gathers the weights of a unit, by its number.
        collect: Takes the gradients of each unit.
        least: The least number of elements that are gathered by themselves.
    """
    modules = [*_separable(model, least), model]
    for module in modules:
        fully_shard(module, mesh=mesh)
    names = {id(each): plain_name(name) for name, each in model.named_parameters()}
    units = []
    for number, module in enumerate(modules):
        assert isinstance(module, FSDPModule), "a module that FSDP2 does not know"
        module.set_custom_all_gather(gather_of(number))
        if mesh.device_type == "cpu":  # which gathers and computes one after the other
            module.set_modules_to_backward_prefetch([module])  # no other one
        # None for a module whose parameters are all in other units.
        if (group := module._get_fsdp_state()._fsdp_param_group) is not None:
            units.append(Unit(module, group, names, collect))
    return units


def _separable(model: nn.Module, least: int) -> list[nn.Module]:
    """The members of the model's outermost lists whose parameters no other module uses."""
    users = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    modules = []
    for child in _members(model):
        own = Counter(id(p) for module in child.modules() for p in module.parameters(recurse=False))
        size = sum(p.numel() for p in child.parameters())
        if size >= least and all(users[each] == count for each, count in own.items()):
            modules.append(child)
    return list(dict.fromkeys(modules))


def _members(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from [child] if isinstance(module, _LISTS) else _members(child)
