"""State dicts: the names in the state dict of a module, and what it has there besides tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

EXTRA_STATE: Final = "_extra_state"
"""Last part of the name of what a module's `get_extra_state` returns."""
THE_MODEL: Final = "model"
"""Name of the trained model among the modules with extra entries; see `worker.user_state`."""
COMPILED: Final = "_orig_mod"
"""Name of the part of a compiled module that is compiled."""


def plain_name(name: str) -> str:
    """`name` without the parts that torch.compile adds."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def extra_entries(module: nn.Module) -> dict[str, Any]:
    """Entries of a state dict that are neither parameters nor buffers, by plain name: what
    `get_extra_state` returns, and what modules with state dicts of their own add. Not the constants
    of quantized weights.
    """
    own: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= module.named_buffers(remove_duplicate=False)
    known = set(map(id, own.values()))
    quantized = tuple(
        f"{name.rpartition('.')[0]}." for name, tensor in own.items() if _is_quantized(tensor)
    )
    return {
        plain_name(name): value
        for name, value in module.state_dict(keep_vars=True).items()
        if name not in own and id(value) not in known and not name.startswith(quantized)
    }


def load_extra_entries(module: nn.Module, entries: Mapping[str, Any]) -> None:
    """Load what `extra_entries` returned into a module."""
    # The module's own dictionary: it has the versions of the modules' formats.
    state: dict[str, Any] = module.state_dict(keep_vars=True)
    for name in list(state):
        if (plain := plain_name(name)) in entries:
            state[name] = entries[plain]
        else:
            del state[name]
    module.load_state_dict(state, strict=False)


def _is_quantized(tensor: torch.Tensor) -> bool:
    is_weight = isinstance(tensor, nn.Parameter)
    return is_weight and (not tensor.is_floating_point() or hasattr(tensor, "quant_state"))
